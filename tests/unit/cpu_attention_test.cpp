// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "unit/attention_support.h"

// The vector kernels against the reference, and what their bits must not depend on. Every option in
// every combination is the conformance table's business; here are the seams of this implementation:
// key tiles of 128, splits of 2048, blocks of rows, padded dimensions.

namespace packattn::test {
namespace {

class CpuAttention : public testing::TestWithParam<std::string> {
 protected:
  /// Implementations for one type are tested in it, the others in fp32.
  static bool is_bf16() { return GetParam().ends_with("bf16"); }
  static AttentionSetup setup_of(std::vector<std::int64_t> q, std::vector<std::int64_t> k) {
    AttentionSetup setup{.lengths_q = std::move(q), .lengths_k = std::move(k)};
    if (is_bf16()) setup.dtype = DType::bf16;
    return setup;
  }
  void expect_close(const AttentionSetup& setup, double limit, const char* what) {
    SCOPED_TRACE(what);
    AttentionInputs inputs(setup);
    const AttentionResult expected = inputs.run("ref/attention");
    const AttentionResult result = inputs.run(GetParam(), 2);
    // 2.3e-3 on average; a few hundred outputs scatter around that, a few dozen more so.
    if (is_bf16()) limit = setup.value_dim < 16 ? 4e-3 : 3e-3;
    EXPECT_LT(relative_error(result.out, expected.out), limit);
    EXPECT_LT(relative_error(result.lse, expected.lse), 1e-6);
  }
};

TEST_P(CpuAttention, MatchesTheReference) {
  const AttentionSetup base = setup_of({130, 1, 0, 7}, {257, 3000, 5, 0});
  expect_close(base, 1e-6, "full");
  for (const bool top_left : {false, true}) {
    AttentionSetup s = base;
    s.options.align = top_left ? Align::top_left : Align::bottom_right;
    s.options.causal = true;
    expect_close(s, 1e-6, "causal");
    s.options = {.align = s.options.align, .window = {.left = 40, .right = 3}};
    expect_close(s, 1e-6, "window");
    s.alibi = s.sinks = true;
    s.options.softcap = 5;
    expect_close(s, 1e-6, "window, ALiBi, sinks, softcap");
  }
  AttentionSetup far = base;
  far.alibi = true;
  far.lengths_q = {3000};
  far.lengths_k = {20};
  expect_close(far, 1e-6, "ALiBi far from every key");
  for (const double scale : {-0.3, 0.0, 1e-30, 3.0}) {
    AttentionSetup s = base;
    s.options.softmax_scale = scale;
    // Scores of 70 have an ulp of 8e-6, and it is in the exponent.
    expect_close(s, scale == 3 ? 4e-6 : 1e-6, "scale");
  }
}

TEST_P(CpuAttention, AnyHeadSizeGroupAndType) {
  for (const auto& [d, dv] :
       {std::pair{1, 3}, {8, 8}, {37, 70}, {80, 80}, {192, 128}, {576, 512}}) {
    for (const auto& [hq, hk] : {std::pair{1, 1}, {5, 1}, {6, 2}, {26, 2}}) {
      AttentionSetup s = setup_of({30}, {200});
      s.heads_q = hq;
      s.heads_k = hk;
      s.head_dim = d;
      s.value_dim = dv;
      s.options.causal = true;
      s.options.softmax_scale = 1 / std::sqrt(double(d));
      if (!is_bf16()) expect_close(s, 1e-6, "fp32");
      s.dtype = DType::bf16;
      expect_close(s, 2.5e-3, "bf16");
      s.f32_out = true;
      expect_close(s, 1e-6, "bf16, fp32 out");
      if (is_bf16()) continue;
      s.dtype = DType::f16;
      expect_close(s, 1e-6, "fp16, fp32 out");
      s.f32_out = false;
      expect_close(s, 4e-4, "fp16");
    }
  }
}

TEST_P(CpuAttention, PagedKeysGiveTheSameBits) {
  for (const std::int64_t page_size : {1, 7, 64}) {
    AttentionSetup s = setup_of({3, 1, 2}, {300, 2500, 0});
    s.page_size = page_size;
    expect_close(s, 1e-6, "paged");
  }
}

TEST_P(CpuAttention, ThreadsAndNeighboursChangeNoBit) {
  AttentionSetup s = setup_of({1, 700, 33, 1}, {9000, 700, 64, 100});
  s.options.causal = true;
  AttentionInputs packed(s);
  const AttentionResult one = packed.run(GetParam(), 1);
  for (const int threads : {2, 3, 16}) EXPECT_EQ(packed.run(GetParam(), threads), one);

  std::int64_t q_begin = 0, k_begin = 0;
  for (std::size_t n = 0; n < s.lengths_q.size(); ++n) {
    const std::int64_t lq = s.lengths_q[n], lk = s.lengths_k[n];
    FloatTensor out(s.dtype, {lq, s.heads_q, s.value_dim});
    attention({packed.q.rows(q_begin, lq), packed.k.rows(k_begin, lk), packed.v.rows(k_begin, lk),
               out.view()},
              PackedBatch::from_lengths(std::vector{lq}, std::vector{lk}), s.options,
              {.threads = 16, .implementation = GetParam()});
    const auto offset = static_cast<std::size_t>(q_begin * s.heads_q * s.value_dim);
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out.get(i)),
                std::bit_cast<std::uint32_t>(one.out.get(offset + i)))
          << "sequence " << n;
    }
    q_begin += lq;
    k_begin += lk;
  }
}

TEST_P(CpuAttention, ChunkedPrefillAtAnyCutIsOneShot) {
  constexpr std::int64_t length = 2200;
  AttentionSetup s = setup_of({length}, {length});
  s.head_dim = 16;
  s.value_dim = 24;
  for (const bool shaped : {false, true}) {
    s.options = {.causal = true};
    if (shaped) s.options.window.left = 300;
    s.alibi = shaped;
    AttentionInputs all(s);
    const AttentionResult whole = all.run(GetParam(), 2);
    AttentionOptions options = s.options;
    if (shaped) options.alibi_slopes = all.slopes.view();
    for (const std::int64_t cut : {1, 127, 128, 1000, 2048, 2199}) {
      FloatTensor out(s.dtype, {length, s.heads_q, s.value_dim});
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, {cut, length}}) {
        attention({all.q.rows(begin, end - begin), all.k.rows(0, end), all.v.rows(0, end),
                   out.rows(begin, end - begin)},
                  PackedBatch::from_lengths(std::vector{end - begin}, std::vector{end}), options,
                  {.threads = 2, .implementation = GetParam()});
      }
      EXPECT_EQ(out, whole.out) << "cut " << cut;
    }
  }
}

TEST_P(CpuAttention, NanInValuesReachesOnlyTheRowsThatSeeThem) {
  AttentionSetup s = setup_of({200}, {200});
  s.options.causal = true;
  AttentionInputs inputs(s);
  const AttentionResult clean = inputs.run(GetParam());
  const auto row_size = static_cast<std::size_t>(s.value_dim);
  inputs.v.set(151 * row_size + 5, NAN);
  inputs.k.set(170 * row_size, INFINITY);
  const AttentionResult dirty = inputs.run(GetParam());
  for (std::size_t i = 0; i < clean.out.size(); ++i) {
    const std::size_t row = i / (row_size * 2);
    if (row < 151) {
      ASSERT_EQ(dirty.out.get(i), clean.out.get(i)) << "row " << row;
    } else if (i % row_size == 5) {
      ASSERT_TRUE(std::isnan(dirty.out.get(i))) << "row " << row;
    }
  }
}

TEST_P(CpuAttention, OneKeyIsItsValue) {
  AttentionInputs inputs(setup_of({1}, {1}));
  for (std::size_t i = 0; i < 64; ++i) inputs.k.set(i, 0);
  inputs.k.set(0, 1000);
  for (std::size_t i = 0; i < 128; ++i) inputs.q.set(i, i % 64 == 0 ? -800 : 1);
  const AttentionResult result = inputs.run(GetParam());
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(result.out.get(i), inputs.v.get(i));
  EXPECT_EQ(result.lse.get(0), -1e5F);
}

TEST_P(CpuAttention, DeclinesWithoutItsInstructions) {
  AttentionInputs inputs(setup_of({1}, {1}));
  inject_faults({.hide_simd = true});
  try {
    inputs.run(GetParam());
    ADD_FAILURE() << "ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.faults().back().code, Code::simd_missing);
  }
  inject_faults({});
}

INSTANTIATE_TEST_SUITE_P(, CpuAttention, testing::ValuesIn(vector_implementations()),
                         [](const auto& test) {
                           return test.param.substr(test.param.find('.') + 1);
                         });

}  // namespace
}  // namespace packattn::test
