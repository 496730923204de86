// SPDX-License-Identifier: Apache-2.0
// Single inputs that hurt elsewhere, and the table of edges in docs/mathematics.md, on every
// implementation of softmax attention.
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "support/attention_data.h"
#include "support/boundaries.h"
#include "support/compare.h"
#include "support/coverage.h"
#include "support/scalar.h"
#include "support/sparse.h"

namespace packattn::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

class AttentionEdges : public testing::TestWithParam<std::string> {
 protected:
  const std::string& implementation() const { return GetParam(); }
  Context context() const { return {.threads = 2, .implementation = implementation()}; }

  /// Results, or nothing where the implementation declines.
  std::vector<AttentionResult> run(const AttentionData& data) {
    AttentionPlacement placement(data);
    if (!takes(implementation(), placement.declined(implementation()))) return {};
    return placement.run(implementation());
  }
  bool accepts(const AttentionArgs& args, const PackedBatch& batch,
               const AttentionOptions& options = {}) {
    for (const Verdict& v : why_attention(args, batch, options)) {
      if (v.implementation == implementation()) return takes(implementation(), v.declined);
    }
    return false;
  }
};

TEST_P(AttentionEdges, ALoneKeyWithAnyFiniteScoreGivesItsValueExactly) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const float score : {-1e5F, -1000.0F, -1.0F, 0.0F, 88.0F, 1e5F}) {
      AttentionData data(
          {.name = "lone_key", .lengths_q = {3}, .lengths_k = {1}, .dtype = dtype, .scale = 1});
      AttentionSequence& s = data.sequences[0];
      std::fill(s.q.begin(), s.q.end(), 0.0F);
      std::fill(s.k.begin(), s.k.end(), 0.0F);
      for (std::size_t head = 0; head < 2; ++head) {
        for (std::size_t row = 0; row < 3; ++row) s.q[(row * 2 + head) * 64] = 256;
        s.k[head * 64] = static_cast<float>(rounded(dtype, score / 256));
      }
      const auto results = run(data);
      if (results.empty()) continue;
      for (std::size_t i = 0; i < results[0].out.size(); ++i) {
        ASSERT_EQ(results[0].out[i], s.v[i % s.v.size()]) << to_string(dtype) << ' ' << score;
      }
      const float expected = 256 * s.k[0];  // exact: a power of two
      for (const float lse : results[0].lse) {
        EXPECT_LE(std::fabs(lse - expected), std::fabs(expected) * 1.2e-7F) << score;
      }
    }
  }
}

TEST_P(AttentionEdges, RowsWithoutVisibleKeysAreZeroAndMinusInfinity) {
  const AttentionData data(
      {.name = "no_visible_key", .lengths_q = {3, 2, 6}, .lengths_k = {0, 4, 2}, .causal = true});
  const auto results = run(data);
  if (results.empty()) return;
  // Bottom-right: the last 2 of the 6 queries meet the 2 keys.
  for (const auto& [n, rows] : {std::pair{0, 3}, std::pair{2, 4}}) {
    const AttentionResult& r = results[static_cast<std::size_t>(n)];
    for (int i = 0; i < rows * 2 * 64; ++i) EXPECT_EQ(r.out[static_cast<std::size_t>(i)], 0);
    const auto lq = static_cast<int>(r.lse.size()) / 2;
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < lq; ++i) {
        const float lse = r.lse[static_cast<std::size_t>(h * lq + i)];
        EXPECT_EQ(lse == -infinity, i < rows) << "sequence " << n << ", row " << i;
      }
    }
  }
}

TEST_P(AttentionEdges, WithoutVisibleKeysTheSinkIsTheLse) {
  AttentionData data({.name = "sink_only", .lengths_q = {2}, .lengths_k = {0}, .sinks = true});
  data.sinks = {1.5F, -40.0F};
  const auto results = run(data);
  if (results.empty()) return;
  EXPECT_EQ(results[0].lse, (std::vector<float>{1.5F, 1.5F, -40.0F, -40.0F}));
  for (const float x : results[0].out) EXPECT_EQ(x, 0);
}

TEST_P(AttentionEdges, AWindowOfTwoTokensShowsTwoKeys) {
  AttentionData data({.name = "two_tokens",
                      .lengths_q = {4},
                      .heads_q = 1,
                      .heads_k = 1,
                      .causal = true,
                      .window = {.left = 1}});
  AttentionSequence& s = data.sequences[0];
  for (std::size_t j = 0; j < 4; ++j) {
    std::fill_n(s.v.begin() + static_cast<std::ptrdiff_t>(j) * 64, 64, 0.0F);
    s.v[j * 64 + j] = 1;  // channel j of the output is the weight of key j
  }
  const auto results = run(data);
  if (results.empty()) return;
  for (std::size_t j = 0; j < 4; ++j) {
    EXPECT_EQ(results[0].out[3 * 64 + j] > 0, j >= 2) << "row 3, key " << j;
  }
}

TEST_P(AttentionEdges, InfinityStaysInItsSequence) {
  const AttentionData clean({.name = "infinity", .lengths_q = {3, 5, 4}, .causal = true});
  const auto expected = run(clean);
  if (expected.empty()) return;
  for (const float bad : {infinity, -infinity}) {
    AttentionData data = clean;
    for (auto* x : {&data.sequences[1].q, &data.sequences[1].k, &data.sequences[1].v}) {
      std::fill(x->begin(), x->end(), bad);
    }
    const auto results = run(data);
    for (const std::size_t n : {0U, 2U}) {
      EXPECT_TRUE(same_bits(results[n].out, expected[n].out, {-1, 2, 64}));
      EXPECT_TRUE(same_bits(results[n].lse, expected[n].lse, {2, -1}));
    }
  }
}

TEST_P(AttentionEdges, EveryOptionChangesTheOutput) {
  const AttentionCase plain{.name = "options", .lengths_q = {12}, .lengths_k = {20}};
  const auto variant = [&](auto&& change) {
    AttentionData data(plain);
    change(data.shape);
    if (data.shape.sinks) data.sinks = {1, 2};
    if (data.shape.slopes == Slopes::per_head) data.slopes = {0.3F, 0.6F};
    const auto results = run(data);
    return results.empty() ? std::vector<float>{} : results[0].out;
  };
  std::set<std::vector<float>> seen{variant([](AttentionCase&) {})};
  std::size_t wanted = 1;
  const auto expect_new = [&](const char* option, auto&& change) {
    auto out = variant(change);
    if (out.empty()) return;  // declined, which is said by code
    EXPECT_TRUE(seen.insert(std::move(out)).second) << option << " does not change the output";
    ++wanted;
  };
  expect_new("softcap", [](AttentionCase& c) { c.softcap = 5; });
  expect_new("causal", [](AttentionCase& c) { c.causal = true; });
  expect_new("align", [](AttentionCase& c) { c.causal = true, c.align = Align::top_left; });
  expect_new("window.left", [](AttentionCase& c) { c.window.left = 4; });
  expect_new("window.right", [](AttentionCase& c) { c.window.right = 4; });
  expect_new("alibi_slopes", [](AttentionCase& c) { c.slopes = Slopes::per_head; });
  expect_new("sinks", [](AttentionCase& c) { c.sinks = true; });
  expect_new("softmax_scale", [](AttentionCase& c) { c.scale = 0.5; });
  EXPECT_EQ(seen.size(), wanted);
}

TEST_P(AttentionEdges, KeyRangesMayOverlap) {
  if (runs_on_device(implementation())) GTEST_SKIP() << "its tensors are laid out on the host";
  const AttentionData data({.name = "shared_prefix", .lengths_q = {2, 3}, .lengths_k = {30, 40}});
  AttentionData same = data;  // the second sequence's first 30 keys are the first one's keys
  std::copy(data.sequences[0].k.begin(), data.sequences[0].k.end(), same.sequences[1].k.begin());
  std::copy(data.sequences[0].v.begin(), data.sequences[0].v.end(), same.sequences[1].v.begin());
  const auto apart = run(same);
  if (apart.empty()) return;

  const AttentionPlacement memory(same);
  const std::vector<std::int64_t> starts_q{0, 2}, lengths_q{2, 3}, starts_k{30, 30},
      lengths_k{30, 40};
  const auto batch = PackedBatch::from_starts_and_lengths(starts_q, lengths_q, starts_k, lengths_k);
  Guarded out(DType::f32, {5, 2, 64});
  AttentionArgs args = memory.args();
  args.out = out.view();
  args.lse = {};
  attention(args, batch, {}, context());
  EXPECT_TRUE(same_bits(out.values(0, 2 * 128), apart[0].out, {2, 2, 64}));
  EXPECT_TRUE(same_bits(out.values(2 * 128), apart[1].out, {3, 2, 64}));
}

TEST_P(AttentionEdges, RowsFartherApartThan32BitsCanCount) {
  // q, k, v and out are columns of one buffer whose rows are 2^27 elements apart.
  constexpr std::int64_t rows = 17, row = std::int64_t{1} << 27, heads = 2, dim = 8;
  const SparseMemory memory(static_cast<std::size_t>(rows) * row * sizeof(float));
  const AttentionData data({.name = "far_rows",
                            .lengths_q = {9, 8},
                            .heads_q = heads,
                            .heads_k = heads,
                            .head_dim = dim,
                            .causal = true});
  const auto column = [&](std::int64_t first) {
    const std::int64_t shape[] = {rows, heads, dim}, strides[] = {row, dim, 1};
    return TensorView(memory.floats() + first, DType::f32, {}, shape, strides);
  };
  const AttentionArgs args{
      .q = column(0), .k = column(1 << 16), .v = column(1 << 17), .out = column(1 << 18)};
  std::int64_t at = 0;
  for (const AttentionSequence& s : data.sequences) {
    for (std::int64_t i = 0; i < s.lq * heads * dim; ++i) {
      const std::int64_t offset = (at + i / (heads * dim)) * row + i % (heads * dim);
      const auto from = static_cast<std::size_t>(i);
      args.q.as<float>()[offset] = s.q[from];
      args.k.as<float>()[offset] = s.k[from];
      args.v.as<float>()[offset] = s.v[from];
    }
    at += s.lq;
  }
  const auto batch = PackedBatch::from_lengths(data.shape.lengths_q);
  if (!accepts(args, batch, {.causal = true})) return;
  attention(args, batch, {.causal = true}, context());
  const auto near = run(data);
  at = 0;
  for (const AttentionResult& r : near) {
    std::vector<float> far;
    for (std::size_t i = 0; i < r.out.size(); ++i) {
      const auto n = static_cast<std::int64_t>(i);
      far.push_back(args.out.as<float>()[(at + n / (heads * dim)) * row + n % (heads * dim)]);
    }
    EXPECT_TRUE(same_bits(far, r.out, {-1, heads, dim}));
    at += static_cast<std::int64_t>(r.out.size()) / (heads * dim);
  }
}

TEST_P(AttentionEdges, SlicesOfAFusedProjection) {
  // [T, 3, H, D] with T rows of 512 elements, the last 128 of them unused.
  const AttentionData data({.name = "fused", .lengths_q = {6, 0, 9}, .causal = true});
  Guarded fused(DType::f32, {15, 512});
  std::int64_t at = 0;
  for (const AttentionSequence& s : data.sequences) {
    for (std::int64_t i = 0; i < s.lq; ++i, at += 512) {
      for (std::int64_t c = 0; c < 128; ++c) {
        fused.set(at + c, s.q[static_cast<std::size_t>(i * 128 + c)]);
        fused.set(at + 128 + c, s.k[static_cast<std::size_t>(i * 128 + c)]);
        fused.set(at + 256 + c, s.v[static_cast<std::size_t>(i * 128 + c)]);
      }
    }
  }
  const auto slice = [&](std::int64_t first) {
    const std::int64_t shape[] = {15, 2, 64}, strides[] = {512, 64, 1};
    return TensorView(fused.view().as<float>() + first, DType::f32, {}, shape, strides, true);
  };
  Guarded out(DType::f32, {15, 2, 64});
  const AttentionArgs args{.q = slice(0), .k = slice(128), .v = slice(256), .out = out.view()};
  const auto batch = PackedBatch::from_lengths(data.shape.lengths_q);
  if (!accepts(args, batch, {.causal = true})) return;
  attention(args, batch, {.causal = true}, context());
  const auto expected = run(data);
  EXPECT_TRUE(same_bits(out.values(0, 6 * 128), expected[0].out, {6, 2, 64}));
  EXPECT_TRUE(same_bits(out.values(6 * 128), expected[2].out, {9, 2, 64}));
}

TEST_P(AttentionEdges, MoreSequencesTimesHeadsThan16Bits) {
  AttentionCase shape{.name = "many",
                      .lengths_q = std::vector<std::int64_t>(4100, 1),
                      .lengths_k = std::vector<std::int64_t>(4100, 2),
                      .heads_q = 16,
                      .heads_k = 16,
                      .head_dim = 8};
  const AttentionData data(shape);
  const auto results = run(data);
  if (results.empty()) return;
  for (std::size_t n = 0; n < results.size(); n += 37) {
    EXPECT_TRUE(close(results[n].out, data.expected(n).out, {1, 16, 8},
                      attention_limits(DType::f32, DType::f32)));
  }
}

std::string name_of(const testing::TestParamInfo<std::string>& info) {
  return test_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, AttentionEdges, testing::ValuesIn(implementations(Op::attention)),
                         name_of);

}  // namespace
}  // namespace packattn::test
