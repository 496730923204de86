// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/faults.h"
#include "unit/attention_support.h"

namespace packattn::test {
namespace {

constexpr std::int64_t tokens = 70, heads = 3, dims = 20;

struct Part {
  FloatTensor out, lse{DType::f32, {heads, tokens}};

  explicit Part(DType dtype = DType::f32, unsigned seed = 1) : out(dtype, {tokens, heads, dims}) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    out.fill([&] { return normal(random); });
    lse.fill([&] { return normal(random); });
  }
  bool operator==(const Part&) const = default;
};

MergeArgs args_of(Part& a, Part& b, Part& to) {
  return {a.out.view(), a.lse.view(), b.out.view(), b.lse.view(), to.out.view(), to.lse.view()};
}

TEST(MergeStates, JoinsByTheirLse) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Part a(dtype, 1), b(dtype, 2), merged(DType::f32, 3);
    merge_states(args_of(a, b, merged), {.threads = 2});
    for (std::size_t i = 0; i < merged.out.size(); ++i) {
      const std::size_t token = i / (heads * dims), head = i / dims % heads;
      const double x = a.lse.get(head * tokens + token), y = b.lse.get(head * tokens + token);
      const double lse = std::log(std::exp(x) + std::exp(y));
      const double out =
          std::exp(x - lse) * a.out.get(i) + std::exp(y - lse) * double{b.out.get(i)};
      ASSERT_NEAR(merged.lse.get(head * tokens + token), lse, 1e-6);
      ASSERT_NEAR(merged.out.get(i), out, 2e-6);
    }
  }
}

TEST(MergeStates, SplitKeysMergeToOneShot) {
  AttentionSetup setup{.lengths_q = {tokens}, .lengths_k = {300}};
  setup.sinks = true;
  AttentionInputs inputs(setup);
  const AttentionResult whole = inputs.run("");
  AttentionResult parts[2] = {whole, whole};
  for (const int part : {0, 1}) {
    AttentionOptions options;
    if (part == 0) options.sinks = inputs.sinks.view();  // it belongs to exactly one part
    const std::int64_t rows = part == 0 ? 111 : 189;
    attention({inputs.q.view(), inputs.k.rows(part * 111, rows), inputs.v.rows(part * 111, rows),
               parts[part].out.view(), parts[part].lse.view()},
              PackedBatch::from_lengths(setup.lengths_q, std::vector{rows}), options);
  }
  merge_states({parts[0].out.view(), parts[0].lse.view(), parts[1].out.view(), parts[1].lse.view(),
                parts[0].out.view(), parts[0].lse.view()});
  EXPECT_LT(relative_error(parts[0].out, whole.out), 1e-6);
  EXPECT_LT(relative_error(parts[0].lse, whole.lse), 1e-6);
}

TEST(MergeStates, APartWithoutKeysHasNoWeightWhateverItHolds) {
  Part a, b(DType::f32, 2), merged;
  const float infinity = INFINITY;
  b.out.fill([] { return NAN; });
  b.lse.fill([&] { return -infinity; });
  merge_states(args_of(a, b, merged));
  EXPECT_EQ(merged, a);
  merge_states(args_of(b, a, merged));
  EXPECT_EQ(merged, a);
  merge_states(args_of(b, b, merged));
  for (std::size_t i = 0; i < merged.out.size(); ++i) ASSERT_EQ(merged.out.get(i), 0);
  for (std::size_t i = 0; i < merged.lse.size(); ++i) ASSERT_EQ(merged.lse.get(i), -infinity);
}

TEST(MergeStates, InPlaceAndThreadsGiveTheSameBits) {
  Part a, b(DType::f32, 2), apart;
  merge_states(args_of(a, b, apart), {.threads = 1});
  merge_states(args_of(a, b, a), {.threads = 3});
  EXPECT_EQ(a, apart);
}

TEST(MergeStates, StridedViews) {
  Part a, b(DType::f32, 2), expected;
  merge_states(args_of(a, b, expected));
  // Heads outermost, rows with a gap behind them.
  FloatTensor wide(DType::f32, {heads, tokens, dims + 4});
  const std::int64_t shape[] = {tokens, heads, dims};
  const std::int64_t strides[] = {dims + 4, tokens * (dims + 4), 1};
  const TensorView out(wide.view().data(), DType::f32, Device{}, shape, strides);
  Part merged;
  MergeArgs args = args_of(a, b, merged);
  args.out = out;
  merge_states(args);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t d = 0; d < dims; ++d) {
        ASSERT_EQ(out.as<float>()[t * strides[0] + h * strides[1] + d],
                  expected.out.get(static_cast<std::size_t>((t * heads + h) * dims + d)));
      }
    }
  }
}

TEST(MergeStates, EveryFaultAtOnce) {
  Part a, b(DType::bf16, 2), merged;
  FloatTensor short_lse(DType::f32, {heads, tokens - 1}), half_lse(DType::f16, {heads, tokens});
  const std::vector<Fault> faults = check_merge_states(
      {a.out.view(), short_lse.view(), b.out.view(), half_lse.view(), b.out.view(), {}});
  for (const Code code : {Code::tensor_shape, Code::tensor_dtype_mismatch, Code::tensor_dtype,
                          Code::outputs_overlap, Code::tensor_missing}) {
    const auto same = [&](const Fault& fault) { return fault.code == code; };
    EXPECT_EQ(std::count_if(faults.begin(), faults.end(), same), 1) << code_id(code);
  }
  EXPECT_EQ(faults.size(), 5U) << render(faults);
  EXPECT_THROW(merge_states({}), Error);
  EXPECT_TRUE(check_merge_states(args_of(a, b, merged)).size() == 1);
}

TEST(MergeStates, HasNoImplementationsToForce) {
  Part a, b, merged;
  const Context forced{.threads = -1, .implementation = "cpu/merge_states"};
  EXPECT_THAT(faults_of([&] { merge_states(args_of(a, b, merged), forced); }),
              testing::ElementsAre(IsFault(Code::threads_invalid, "threads", "", "-1"),
                                   IsFault(Code::implementation_unknown, "merge_states", "",
                                           "\"cpu/merge_states\"")));
}

}  // namespace
}  // namespace packattn::test
