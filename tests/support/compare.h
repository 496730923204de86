// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "packattn/tensor.h"

namespace packattn::test {

/// Set by the tests on random calls, whose tensors may have a handful of elements: `close` then
/// gives those room that the cases of the table do not get.
inline bool random_shapes = false;

/// Relative norm errors that are promised against fp64 on the same inputs (docs/accuracy.md).
struct Limits {
  double norm;      ///< of the whole tensor: |actual - expected| / |expected|
  double row = 10;  ///< a single row of the last dimension may be this many times worse
};
Limits attention_limits(DType dtype, DType out);
Limits kda_out_limits(DType dtype, DType out);
Limits kda_state_limits(DType dtype, DType state);
Limits layer_limits(DType out);
/// Of a log-sum-exp, absolute at 1 and relative above.
inline constexpr double lse_limit = 4e-6;

/// `shape` names positions in the message; its last dimension is the row of `Limits::row`.
/// Where the expected value is NaN or infinite, the actual one has to be the same.
testing::AssertionResult close(std::span<const float> actual, std::span<const double> expected,
                               const std::vector<std::int64_t>& shape, Limits limits);

testing::AssertionResult lse_close(std::span<const float> actual, std::span<const double> expected,
                                   const std::vector<std::int64_t>& shape,
                                   double limit = lse_limit);

/// Equal bit for bit, with the first difference and their number in the message.
testing::AssertionResult same_bits(std::span<const float> actual, std::span<const float> expected,
                                   const std::vector<std::int64_t>& shape);

/// "[3, 0, 17]"
std::string position_of(std::int64_t flat, const std::vector<std::int64_t>& shape);

}  // namespace packattn::test
