// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "unit/kda_support.h"

namespace packattn::test {
namespace {

/// Runs one implementation and compares output and final state with the closed form.
void expect_right(KdaCase& c, const KdaImplementationName& which, double tolerance) {
  run_kda(which.op, c.args(), c.batch(), c.options, {.implementation = which.name});
  const KdaExpected expected = closed_form(c);
  EXPECT_LT(relative_error(c.out, expected.out), tolerance) << which.name;
  EXPECT_LT(relative_error(c.final, expected.final), tolerance) << which.name;
}

class KdaEvery : public testing::TestWithParam<KdaImplementationName> {};

INSTANTIATE_TEST_SUITE_P(, KdaEvery, testing::ValuesIn(kda_implementations()), kda_test_name);

constexpr double fp32 = 5e-6;

TEST_P(KdaEvery, LengthsAroundChunkEdges) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 500}) {
    KdaCase c({.lengths = {length, 0, 3}});
    expect_right(c, GetParam(), fp32);
  }
}

TEST_P(KdaEvery, GateAndBetaKinds) {
  for (const GateKind gate : {GateKind::given, GateKind::softplus, GateKind::bounded}) {
    for (const BetaKind beta : {BetaKind::given, BetaKind::sigmoid, BetaKind::two_sigmoid}) {
      KdaCase c({.lengths = {37, 5}, .H = 2, .HV = 4, .K = 24, .V = 40});
      if (gate != GateKind::given) c.gate(gate);
      c.options.beta = beta;
      c.options.l2norm = true;
      expect_right(c, GetParam(), fp32);
    }
  }
}

TEST_P(KdaEvery, OneGateAHead) {
  KdaCase c({.lengths = {70, 33}, .H = 1, .HV = 3, .gate_per_head = true});
  expect_right(c, GetParam(), fp32);
}

TEST_P(KdaEvery, OddHeadSizes) {
  for (const auto& [K, V] : {std::pair{1, 1}, {3, 5}, {17, 33}, {100, 7}, {8, 300}, {260, 20}}) {
    KdaCase c({.lengths = {35}, .K = K, .V = V});
    expect_right(c, GetParam(), fp32);
  }
}

TEST_P(KdaEvery, StrongAndUnevenGates) {
  for (const float gate : {0.0F, -2.0F, -6.0F, -50.0F, -1000.0F, -1e-4F}) {
    KdaCase c({.lengths = {150}, .K = 32, .V = 48});
    c.g.fill([&](std::int64_t i) { return gate * (i % 3 == 0 ? 1.0F : 0.01F); });
    expect_right(c, GetParam(), fp32);
    c.g.fill([&](std::int64_t) { return gate; });
    expect_right(c, GetParam(), fp32);
  }
}

TEST_P(KdaEvery, AGateOfMinusInfinityForgetsAll) {
  KdaCase c({.lengths = {40}, .K = 16, .V = 24});
  for (const std::int64_t t : {0, 5, 16, 20}) {
    for (std::int64_t i = 0; i < 2 * 16; ++i) c.g.set(t * 32 + i, -INFINITY);
  }
  expect_right(c, GetParam(), fp32);
}

TEST_P(KdaEvery, IdenticalKeysWithFullBeta) {
  for (const float gate : {0.0F, -0.02F}) {
    KdaCase c({.lengths = {16, 64, 100}});
    c.k.fill([](std::int64_t i) { return i % 64 % 2 == 0 ? 0.125F : -0.125F; });
    c.beta.fill([](std::int64_t) { return 1; });
    c.g.fill([&](std::int64_t i) { return gate * static_cast<float>(i % 3) / 2; });
    expect_right(c, GetParam(), fp32);
  }
}

TEST_P(KdaEvery, TwoStepsOfGateMinusOneShrinkByE) {
  KdaCase c({.lengths = {2}, .K = 8, .V = 16});
  c.g.fill([](std::int64_t) { return -1; });
  c.beta.fill([](std::int64_t) { return 0; });
  c.initial.fill([](std::int64_t) { return 1; });
  run_kda(GetParam().op, c.args(), c.batch(), c.options, {.implementation = GetParam().name});
  for (std::int64_t i = 0; i < c.final.numel(); ++i) {
    EXPECT_NEAR(c.final[i], std::exp(-2.0), 1e-7);
  }
}

TEST_P(KdaEvery, LowPrecisionInputs) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    KdaCase c({.lengths = {90, 30}, .dtype = dtype, .out_dtype = dtype});
    c.options.l2norm = true;
    run_kda(GetParam().op, c.args(), c.batch(), c.options, {.implementation = GetParam().name});
    const KdaExpected expected = closed_form(c);
    EXPECT_LT(relative_error(c.out, expected.out), dtype == DType::f16 ? 4e-4 : 2.0e-3);
    EXPECT_LT(relative_error(c.final, expected.final), fp32);
  }
}

TEST_P(KdaEvery, StatesInTheOtherLayoutAndInBf16) {
  const KdaShape shape{.lengths = {20, 9}, .K = 24, .V = 40};
  KdaCase c(shape), turned(shape);
  const auto transpose = [&](const Owned& from, Owned& to) {
    const std::int64_t K = shape.K, V = shape.V;
    to = Owned(DType::f32, {2, 2, V, K}).fill([&](std::int64_t i) {
      return from[i / (K * V) * K * V + i % K * V + i / K % V];
    });
  };
  run_kda(GetParam().op, c.args(), c.batch(), c.options, {.implementation = GetParam().name});
  transpose(c.initial, turned.initial);
  turned.final = Owned(DType::f32, {2, 2, shape.V, shape.K});
  turned.options.state_layout = StateLayout::v_first;
  run_kda(GetParam().op, turned.args(), c.batch(), turned.options,
          {.implementation = GetParam().name});
  // The layout is an option that may decide which way a sum runs.
  const KdaExpected expected = closed_form(c);
  EXPECT_LT(relative_error(turned.out, expected.out), fp32);
  Owned back;
  const std::int64_t K = shape.K, V = shape.V;
  back = Owned(DType::f32, {2, 2, K, V}).fill([&](std::int64_t i) {
    return turned.final[i / (K * V) * K * V + i % V * K + i / V % K];
  });
  EXPECT_LT(relative_error(back, expected.final), fp32);

  // bf16: the initial state is exact, the final one rounded once.
  KdaCase low(shape);
  low.initial = Owned(DType::bf16, {2, 2, shape.K, shape.V}).fill([&](std::int64_t i) {
    return c.initial[i];
  });
  low.final = Owned(DType::bf16, {2, 2, shape.K, shape.V});
  run_kda(GetParam().op, low.args(), low.batch(), low.options, {.implementation = GetParam().name});
  EXPECT_LT(relative_error(low.final, closed_form(low).final), 2e-3);
  EXPECT_LT(relative_error(low.out, closed_form(low).out), fp32);
}

TEST_P(KdaEvery, WithoutTokensTheStatePassesThrough) {
  KdaCase c({.lengths = {0, 1, 0}});
  c.initial.set(3, std::numeric_limits<float>::quiet_NaN());
  c.initial.set(4, -0.0F);
  run_kda(GetParam().op, c.args(), c.batch(), c.options, {.implementation = GetParam().name});
  const std::size_t state = c.initial.bytes().size() / 3;
  for (const std::size_t n : {0U, 2U}) {
    EXPECT_EQ(std::memcmp(c.initial.bytes().data() + n * state, c.final.bytes().data() + n * state,
                          state),
              0);
  }
  KdaArgs args = c.args();
  args.initial_state = {};
  run_kda(GetParam().op, args, c.batch(), c.options, {.implementation = GetParam().name});
  for (std::int64_t i = 0; i < c.final.numel() / 3; ++i) EXPECT_EQ(c.final[i], 0);
}

}  // namespace
}  // namespace packattn::test
