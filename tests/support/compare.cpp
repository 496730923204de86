// SPDX-License-Identifier: Apache-2.0
#include "support/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>

namespace packattn::test {
namespace {

struct Worst {
  std::int64_t at = -1;
  double error = 0;
};

std::string both(double actual, double expected) {
  std::ostringstream text;
  text.precision(9);
  text << actual << " instead of " << expected;
  return text.str();
}

// NaN and infinity first: one of them makes every other figure useless.
testing::AssertionResult same_specials(std::span<const float> actual,
                                       std::span<const double> expected,
                                       const std::vector<std::int64_t>& shape) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " values instead of " << expected.size();
  }
  std::int64_t count = 0;
  std::int64_t first = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i];
    const double e = expected[i];
    if (std::isfinite(a) && std::isfinite(e)) continue;
    if (std::isnan(a) ? std::isnan(e) : a == e) continue;
    if (count++ == 0) first = static_cast<std::int64_t>(i);
  }
  if (count == 0) return testing::AssertionSuccess();
  const auto i = static_cast<std::size_t>(first);
  return testing::AssertionFailure()
         << count << " values are NaN or infinite on one side only, first at "
         << position_of(first, shape) << ": " << both(actual[i], expected[i]);
}

}  // namespace

Limits attention_limits(DType dtype, DType out) {
  // A kernel for 16-bit inputs may round the weights to 16 bits, whatever it stores.
  switch (out == DType::f32 ? dtype : out) {
    case DType::f16: return {4e-4};
    case DType::bf16: return {2.5e-3};
    default: return {2e-6};
  }
}

Limits layer_limits(DType out) {
  switch (out) {
    case DType::f16: return {4e-4};
    case DType::bf16: return {2.5e-3};
    default: return {3e-7};
  }
}

Limits kda_out_limits(DType dtype, DType out) {
  // A kernel for 16-bit inputs may use 16-bit operands whatever it stores.
  if (dtype == DType::f32 && out == DType::f32) return {5e-6};
  return {2e-3};
}

Limits kda_state_limits(DType dtype, DType state) {
  if (state == DType::bf16) return {2e-3};
  return dtype == DType::f32 ? Limits{5e-6} : Limits{1e-3};
}

std::string position_of(std::int64_t flat, const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::size_t d = shape.size(); d-- > 0;) {
    text = std::to_string(flat % shape[d]) + (text.empty() ? "" : ", ") + text;
    flat /= shape[d];
  }
  return "[" + text + "]";
}

namespace {

/// The promised errors are means over many elements: rounding to bf16 costs 1.66e-3 in the mean,
/// but 3.9e-3 for an unlucky element, and a single sum that cancels has lost digits that a norm
/// over many does not see. A few elements get room for that.
double sampling(std::size_t elements) {
  if (!random_shapes || elements == 0) return 1;
  return 1 + 4 / std::sqrt(static_cast<double>(elements));
}

}  // namespace

testing::AssertionResult close(std::span<const float> actual, std::span<const double> expected,
                               const std::vector<std::int64_t>& shape, Limits limits) {
  if (auto specials = same_specials(actual, expected, shape); !specials) return specials;
  const auto width = static_cast<std::size_t>(shape.back());
  const std::size_t rows = width == 0 ? 0 : actual.size() / width;
  std::vector<double> row_error(rows, 0);
  double error = 0;
  double norm = 0;
  Worst worst;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i])) continue;
    const double difference = std::fabs(actual[i] - expected[i]);
    if (difference > worst.error) worst = {static_cast<std::int64_t>(i), difference};
    row_error[i / width] += difference * difference;
    error += difference * difference;
    norm += expected[i] * expected[i];
  }
  const double mean_row = rows == 0 ? 0 : std::sqrt(norm / static_cast<double>(rows));
  std::size_t bad_row = rows;
  for (std::size_t r = 0; r < rows && bad_row == rows; ++r) {
    double row_norm = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const double e = expected[r * width + c];
      if (std::isfinite(e)) row_norm += e * e;
    }
    const double row_limit = limits.norm * limits.row * (std::sqrt(row_norm) + mean_row);
    if (std::sqrt(row_error[r]) > row_limit) bad_row = r;
  }
  const double relative = std::sqrt(error) / std::max(std::sqrt(norm), 1e-30);
  const double allowed = limits.norm * sampling(actual.size());
  if (error == 0 || (relative <= allowed && bad_row == rows)) {
    return testing::AssertionSuccess();
  }
  const auto at = static_cast<std::size_t>(worst.at);
  auto failure = testing::AssertionFailure()
                 << "relative norm error " << relative << ", allowed " << allowed << "; worst at "
                 << position_of(worst.at, shape) << ": " << both(actual[at], expected[at]);
  if (bad_row != rows) {
    failure << "; row from " << position_of(static_cast<std::int64_t>(bad_row * width), shape)
            << " is off by " << std::sqrt(row_error[bad_row]);
  }
  return failure;
}

testing::AssertionResult lse_close(std::span<const float> actual, std::span<const double> expected,
                                   const std::vector<std::int64_t>& shape, double limit) {
  if (auto specials = same_specials(actual, expected, shape); !specials) return specials;
  Worst worst;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i])) continue;
    const double error = std::fabs(actual[i] - expected[i]) / std::max(1.0, std::fabs(expected[i]));
    if (error > worst.error) worst = {static_cast<std::int64_t>(i), error};
  }
  if (worst.error <= limit) return testing::AssertionSuccess();
  const auto at = static_cast<std::size_t>(worst.at);
  return testing::AssertionFailure()
         << "error " << worst.error << ", allowed " << limit << "; worst at "
         << position_of(worst.at, shape) << ": " << both(actual[at], expected[at]);
}

testing::AssertionResult same_bits(std::span<const float> actual, std::span<const float> expected,
                                   const std::vector<std::int64_t>& shape) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " values instead of " << expected.size();
  }
  std::int64_t count = 0;
  std::size_t first = 0;
  for (std::size_t i = actual.size(); i-- > 0;) {
    if (std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i])) {
      continue;
    }
    ++count;
    first = i;
  }
  if (count == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << count << " of " << actual.size() << " values differ, first at "
         << position_of(static_cast<std::int64_t>(first), shape) << ": "
         << both(actual[first], expected[first]);
}

}  // namespace packattn::test
