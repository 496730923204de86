// SPDX-License-Identifier: Apache-2.0
#include "conformance/layer_promises.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/coverage.h"
#include "support/random.h"

namespace packattn::test {
namespace {

std::string sequence(std::size_t n) { return "sequence " + std::to_string(n); }

}  // namespace

LayerPromises::LayerPromises(LayerData data, std::string implementation)
    : data_(std::move(data)), implementation_(std::move(implementation)) {}

bool LayerPromises::taken() {
  return takes(implementation_, LayerPlacement(data_).declined(implementation_));
}

void LayerPromises::all() {
  equal_the_oracle();
  repeat_on_any_threads();
  packed_is_alone_in_any_order();
  nan_stays();
  later_tokens_change_nothing();
  continued_is_one_shot();
}

std::vector<LayerResult> LayerPromises::run(const LayerData& data) {
  return LayerPlacement(data).run({.threads = 1, .implementation = implementation_});
}

void LayerPromises::expect_same(const LayerResult& actual, const LayerResult& expected,
                                const std::string& what) {
  EXPECT_TRUE(same_bits(actual.out, expected.out, rows())) << "out, " << what;
  EXPECT_TRUE(same_bits(actual.residual, expected.residual, rows())) << "residual, " << what;
  EXPECT_TRUE(same_bits(actual.final, expected.final, {shape().row(), shape().taps - 1}))
      << "state, " << what;
}

void LayerPromises::equal_the_oracle() {
  const auto results = run();
  for (std::size_t n = 0; n < results.size(); ++n) {
    if (shape().skipped(n)) continue;  // checked to be 0 by the placement
    const LayerResult& r = results[n];
    const LayerOracle expected = data_.expected(n);
    EXPECT_TRUE(close(r.out, expected.out, rows(), layer_limits(shape().out_type())))
        << sequence(n);
    if (!r.residual.empty()) {
      EXPECT_TRUE(close(r.residual, expected.residual, rows(), layer_limits(shape().side_dtype)))
          << "residual, " << sequence(n);
    }
    // Inputs that are only kept are not rounded again.
    const std::vector<float> kept(expected.final.begin(), expected.final.end());
    if (!r.final.empty()) {
      EXPECT_TRUE(same_bits(r.final, kept, {shape().row(), shape().taps - 1})) << sequence(n);
    }
  }
}

void LayerPromises::repeat_on_any_threads() {
  const auto once = run();
  LayerPlacement placement(data_);
  for (const int threads : {1, 2, 3, 8, 0}) {
    const auto again = placement.run({.threads = threads, .implementation = implementation_});
    for (std::size_t n = 0; n < once.size(); ++n) {
      expect_same(again[n], once[n], sequence(n) + ", threads " + std::to_string(threads));
    }
  }
}

void LayerPromises::packed_is_alone_in_any_order() {
  const auto packed = run();
  Random random(seed_of(shape().name));
  std::vector<std::size_t> order;
  for (const auto n : random.permutation(static_cast<std::int64_t>(packed.size()))) {
    order.push_back(static_cast<std::size_t>(n));
  }
  const auto shuffled = run(data_.only(order));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t n = order[i];
    if (shape().skipped(n)) continue;
    LayerResult alone = run(data_.only({n}))[0], other = shuffled[i];
    if (!shape().writes_state()) alone.final = other.final = {};
    expect_same(alone, packed[n], sequence(n) + " alone");
    expect_same(other, packed[n], sequence(n) + " in another place");
  }
}

void LayerPromises::nan_stays() {
  const auto clean = run();
  for (std::size_t bad = 0; bad < data_.sequences.size(); ++bad) {
    LayerData edited = data_;
    for (auto* values : {&edited.sequences[bad].x, &edited.sequences[bad].gate}) {
      std::fill(values->begin(), values->end(), std::numeric_limits<float>::quiet_NaN());
    }
    const auto results = run(edited);
    for (std::size_t n = 0; n < results.size(); ++n) {
      if (n != bad) expect_same(results[n], clean[n], sequence(n));
    }
  }
}

void LayerPromises::later_tokens_change_nothing() {
  const auto before = run();
  LayerData edited = data_;
  for (LayerSequence& s : edited.sequences) {
    for (auto* values : {&s.x, &s.gate, &s.residual}) {
      if (values->empty()) continue;
      std::fill(values->begin() + s.t / 2 * shape().row(), values->end(), -100.0F);
    }
  }
  const auto after = run(edited);
  for (std::size_t n = 0; n < after.size(); ++n) {
    const auto kept = static_cast<std::size_t>(data_.sequences[n].t / 2 * shape().row());
    EXPECT_TRUE(same_bits({after[n].out.data(), kept}, {before[n].out.data(), kept}, rows()))
        << sequence(n);
  }
}

void LayerPromises::continued_is_one_shot() {
  for (std::size_t n = 0; shape().convolves() && n < data_.sequences.size(); ++n) {
    const LayerSequence& s = data_.sequences[n];
    if (s.t < 2) continue;
    const LayerData whole = data_.only({n});
    const LayerResult expected = run(whole)[0];
    for (const std::int64_t cut : {std::int64_t{1}, s.t / 2, s.t - 1}) {
      LayerData part = whole;
      part.sequences = {data_.cut(n, 0, cut, s.initial)};
      LayerResult joined = run(part)[0];
      part.sequences = {data_.cut(n, cut, s.t, joined.final)};
      part.shape.state = KdaState::separate;
      const LayerResult second = run(part)[0];
      joined.out.insert(joined.out.end(), second.out.begin(), second.out.end());
      joined.final = second.final;
      expect_same(joined, expected, sequence(n) + " cut at " + std::to_string(cut));
    }
  }
}

}  // namespace packattn::test
