// SPDX-License-Identifier: Apache-2.0
// Partial results over disjoint keys, joined by their lse.
#include <gtest/gtest.h>

#include "conformance/attention_fixture.h"

namespace packattn::test {
namespace {

class SplitAttention : public AttentionConformance {};

TEST_P(SplitAttention, SplitKeysAndMergedAreOneShot) {
  for (std::size_t n = 0; n < data_.sequences.size(); ++n) {
    const AttentionSequence& s = data_.sequences[n];
    const std::int64_t cut = s.lk / 3;
    AttentionData first = data_.only({});
    first.shape.out_dtype = DType::f32;
    first.shape.lse = true;
    AttentionData second = first;
    first.sequences.push_back(data_.cut(n, 0, s.lq, 0, cut));
    second.sequences.push_back(data_.cut(n, 0, s.lq, cut, s.lk));
    first.shape.sinks = false;  // the sink belongs to one part
    if (shape().causal) {
      first.shape.causal = false;
      first.shape.window.right = s.lk - cut;
    }
    auto a = run(first)[0];
    const auto b = run(second)[0];
    const auto view = [](const std::vector<float>& values, std::vector<std::int64_t> dims) {
      return TensorView(const_cast<float*>(values.data()), DType::f32, {}, dims);
    };
    merge_states({.out_a = view(a.out, out_shape(s.lq)),
                  .lse_a = view(a.lse, lse_shape(s.lq)),
                  .out_b = view(b.out, out_shape(s.lq)),
                  .lse_b = view(b.lse, lse_shape(s.lq)),
                  .out = view(a.out, out_shape(s.lq)),
                  .lse = view(a.lse, lse_shape(s.lq))});
    const AttentionOracle expected = data_.expected(n);
    EXPECT_TRUE(
        close(a.out, expected.out, out_shape(s.lq), attention_limits(shape().dtype, DType::f32)))
        << "sequence " << n;
    EXPECT_TRUE(lse_close(a.lse, expected.lse, lse_shape(s.lq))) << "sequence " << n;
  }
}

TEST_P(AttentionConformance, WorkspaceAndProgressAreTheCallersIfWanted) {
  const auto own = placement_->run(implementation());
  Context context{.threads = 2, .implementation = implementation()};
  const std::size_t bytes = attention_workspace_bytes(placement_->args(), placement_->batch(),
                                                      placement_->options(), context);
  Guarded memory(DType::u8, {static_cast<std::int64_t>(bytes)});
  context.workspace = {memory.view().as<std::byte>(), bytes};
  std::int64_t last = 0;
  std::int64_t total = -1;
  context.progress = [&](std::int64_t done, std::int64_t of) {
    EXPECT_EQ(done, last + 1);
    EXPECT_TRUE(total == -1 || total == of);
    last = done;
    total = of;
  };
  const auto given = placement_->run(context);
  EXPECT_EQ(memory.damaged(), 0) << "bytes around the workspace were written";
  EXPECT_TRUE(total == -1 || last == total) << last << " of " << total;
  for (std::size_t n = 0; n < own.size(); ++n) {
    expect_same(given[n], own[n], "sequence " + std::to_string(n));
  }
}

// What either part of the keys computes can be said as a call of its own.
bool can_split(const AttentionCase& c) {
  const bool plain = !c.window.left && !c.window.right && c.slopes == Slopes::none;
  return plain && (!c.causal || c.align == Align::bottom_right);
}

INSTANTIATE_TEST_SUITE_P(All, SplitAttention, every_implementation_on(only(can_split)),
                         attention_name);

}  // namespace
}  // namespace packattn::test
