// SPDX-License-Identifier: Apache-2.0
// cpu/attention.amx_bf16 on emulated tiles: every case of the table, in both types that it takes,
// and what tiles themselves do to a number.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/amx_kernels.h"
#include "conformance/attention_promises.h"
#include "support/compare.h"
#include "support/coverage.h"

namespace packattn::test {
namespace {

[[maybe_unused]] const bool emulated = (use_emulated_tiles(), true);
const std::string row = "cpu/attention.amx_bf16";

constexpr std::string_view adapted = "_in_16_bits";

class AmxAttention : public testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    // Cases that were written for fp32 may have a handful of elements.
    random_shapes = GetParam().name.ends_with(adapted);
    if (!promises.taken()) GTEST_SKIP() << promises.reason();
  }
  AttentionPromises promises{AttentionData(GetParam()), row};
};

TEST_P(AmxAttention, KeepsItsPromises) {
  promises.all();
  promises.workspace_and_progress();
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (AttentionCase c : attention_table()) {
    if (c.dtype != DType::f32) {
      all.push_back(c);
      continue;
    }
    for (const DType dtype : {DType::bf16, DType::f16}) {
      // Its own cases are there, and the paths of both types differ in little.
      if (dtype == DType::f16 && (reduced_table() || c.name.starts_with("long"))) continue;
      c.dtype = dtype;
      all.push_back(c);
      all.back().name.append("_").append(to_string(dtype)).append(adapted);
    }
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<AttentionCase>& info) {
  return test_name(info.param.name);
}
INSTANTIATE_TEST_SUITE_P(All, AmxAttention, testing::ValuesIn(cases()), name_of);

/// Results of one call, or nothing where this machine cannot run it.
std::vector<AttentionResult> run(const AttentionData& data) {
  AttentionPlacement placement(data);
  if (!takes(row, placement.declined(row))) return {};
  return placement.run(row);
}

/// A handful of rows take another way through the kernel than a prompt's.
TEST(AmxAttentionNumbers, ADecodedRowHasTheBitsThatItHasInItsPrompt) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t dim : {24, 64, 160}) {
      AttentionData prompt({.name = "prompt",
                            .lengths_q = {450},
                            .lengths_k = {450},
                            .heads_q = 4,
                            .head_dim = dim,
                            .dtype = dtype,
                            .causal = true,
                            .window = {.left = 333},
                            .magnitude = 8});
      // A value that does not go through the tiles.
      prompt.sequences[0].v[100 * 2 * static_cast<std::size_t>(dim)] =
          dtype == DType::bf16 ? 0x1p-110F : std::numeric_limits<float>::infinity();
      const auto whole = run(prompt);
      if (whole.empty()) GTEST_SKIP() << "no AVX-512 with bf16";
      for (const std::int64_t place : {0, 40, 300, 449}) {
        AttentionData decode = prompt;
        decode.shape.lengths_q = {1};
        decode.shape.lengths_k = {place + 1};
        decode.sequences[0] = prompt.cut(0, place, place + 1, 0, place + 1);
        const auto alone = run(decode);
        const auto width = static_cast<std::size_t>(4 * dim), at = static_cast<std::size_t>(place);
        const auto from = whole[0].out.begin() + static_cast<std::ptrdiff_t>(at * width);
        EXPECT_TRUE(same_bits(alone[0].out,
                              std::vector<float>(from, from + static_cast<std::ptrdiff_t>(width)),
                              {1, 4, dim}))
            << to_string(dtype) << ", " << dim << " dimensions, row " << place;
        for (std::size_t h = 0; h < 4; ++h) EXPECT_EQ(alone[0].lse[h], whole[0].lse[h * 450 + at]);
      }
    }
  }
}

TEST(AmxAttentionNumbers, ALoneKeyGivesItsValueExactlyAlsoWhereTilesTakeItForZero) {
  AttentionData data(
      {.name = "tiny", .lengths_q = {5}, .lengths_k = {1}, .heads_q = 4, .dtype = DType::bf16});
  std::vector<float>& v = data.sequences[0].v;
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = std::ldexp(i % 3 == 0 ? -1.0F : 1.0F, -133 + static_cast<int>(i));
  }
  const auto results = run(data);
  if (results.empty()) GTEST_SKIP() << "no AVX-512 with bf16";
  const std::size_t group = 2;  // query heads of a key head
  for (std::size_t i = 0; i < results[0].out.size(); ++i) {
    const std::size_t head = i / 64 % 4 / group;
    ASSERT_EQ(results[0].out[i], v[head * 64 + i % 64]) << i;
  }
}

TEST(AmxAttentionNumbers, TinyValuesOfSeveralKeysAreWeighed) {
  AttentionData data({.name = "tiny_mean",
                      .lengths_q = {3},
                      .lengths_k = {300},
                      .dtype = DType::bf16,
                      .out_dtype = DType::f32});
  for (float& x : data.sequences[0].v) x = std::ldexp(x, -120);
  const auto results = run(data);
  if (results.empty()) GTEST_SKIP() << "no AVX-512 with bf16";
  std::vector<float> scaled = results[0].out;
  for (float& x : scaled) x = std::ldexp(x, 120);
  auto expected = data.expected(0).out;
  for (double& x : expected) x = std::ldexp(x, 120);
  EXPECT_TRUE(close(scaled, expected, {3, 2, 64}, attention_limits(DType::bf16, DType::f32)));
}

TEST(AmxAttentionNumbers, WhatARowDoesNotSeeCannotReachItEvenIfItIsNotANumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const AttentionData clean(
        {.name = "late_nan", .lengths_q = {200}, .dtype = dtype, .causal = true});
    const auto before = run(clean);
    if (before.empty()) GTEST_SKIP() << "no AVX-512 with bf16";
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
      AttentionData edited = clean;
      constexpr std::size_t first = 77, width = 128;
      AttentionSequence& s = edited.sequences[0];
      for (std::size_t c = 0; c < width; c += 5) s.v[first * width + c] = bad;
      for (std::size_t c = 0; c < width; ++c) s.k[(first + 60) * width + c] = bad;
      const auto after = run(edited);
      const auto rows = [&](const AttentionResult& r) {
        return std::vector<float>(r.out.begin(), r.out.begin() + first * width);
      };
      EXPECT_TRUE(same_bits(rows(after[0]), rows(before[0]), {-1, 2, 64})) << bad;
      for (std::size_t c = 0; c < width; ++c) {
        const float x = after[0].out[first * width + c];
        EXPECT_EQ(std::isfinite(x), c % 5 != 0) << bad << ", channel " << c;
      }
    }
  }
}

}  // namespace
}  // namespace packattn::test
