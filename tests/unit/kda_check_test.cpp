// SPDX-License-Identifier: Apache-2.0
#include "unit/kda_check_support.h"

namespace packattn::test {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST_F(KdaChecks, TheCallIsLegal) {
  EXPECT_THAT(faults(), testing::IsEmpty());
  op = Op::kda_chunk;
  EXPECT_THAT(faults(), testing::IsEmpty());
}

TEST_F(KdaChecks, RanksDtypesAndMissingTensorsAllAtOnce) {
  args.q = reshape(args.q, {8, 2, 16});
  args.k = {};
  args.v = reshape(args.v, {8, 96});
  args.beta = {};
  EXPECT_THAT(codes(), UnorderedElementsAre(Code::tensor_rank, Code::tensor_missing,
                                            Code::tensor_rank, Code::tensor_missing));
}

TEST_F(KdaChecks, PaddedBatchBesideBoundaries) {
  for (TensorView* x : {&args.q, &args.k}) *x = reshape(*x, {2, 4, 2, 16});
  args.v = reshape(args.v, {2, 4, 4, 24});
  args.g = reshape(args.g, {2, 4, 4, 16});
  args.beta = reshape(args.beta, {2, 4, 4});
  args.out = reshape(args.out, {2, 4, 4, 24});
  std::vector<std::string> named;
  for (const Fault& f : faults()) {
    if (f.code == Code::batch_not_one) named.push_back(f.argument);
  }
  EXPECT_THAT(named, UnorderedElementsAre("q", "k", "v", "g", "beta"));
}

TEST_F(KdaChecks, RowsHeadsAndSizesThatDoNotMatch) {
  args.k = reshape(args.k, {1, 4, 2, 16});
  expect(Code::tokens_mismatch, "k");
  args.k = reshape(args.k, {1, 8, 1, 16});
  expect(Code::heads_mismatch, "k");
  args.k = reshape(args.k, {1, 8, 2, 8});
  expect(Code::head_size_mismatch, "k");
  args.k = c.k.view();
  args.g = reshape(args.g, {1, 7, 4, 16});
  expect(Code::tokens_mismatch, "g");
}

TEST_F(KdaChecks, ValueHeadsAreAMultipleOfKeyHeads) {
  args.v = reshape(args.v, {1, 8, 3, 24});
  EXPECT_THAT(codes(), testing::Contains(Code::heads_ratio));
}

TEST_F(KdaChecks, MixedPrecision) {
  Owned half(DType::f16, {1, 8, 2, 16});
  args.k = half.view();
  expect(Code::tensor_dtype_mismatch, "k");
  args.k = c.k.view();
  Owned doubles(DType::f64, {1, 8, 4});
  args.beta = doubles.view();
  expect(Code::tensor_dtype, "beta");
}

TEST_F(KdaChecks, GateAndBetaShapesAreListed) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{8, 64},
                                                 {8, 4, 16},
                                                 {1, 8, 2, 32},
                                                 {1, 8, 2, 16},
                                                 {1, 8, 2},
                                                 {512}}) {
    args.g = reshape(c.g.view(), sizes);
    expect(Code::gate_shape, "g");
    EXPECT_THAT(fault().message, HasSubstr("[B, T, 4, 16] or [B, T, 4]"));
  }
  args.g = c.g.view();
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{8}, {8, 4, 1}, {1, 8, 2}, {1, 8, 4, 16}}) {
    args.beta = reshape(c.beta.view(), sizes);
    expect(Code::beta_shape, "beta");
    EXPECT_THAT(fault().message, HasSubstr("[B, T, 4] or [B, T, 4, 24]"));
  }
}

TEST_F(KdaChecks, GateParameters) {
  options.gate = GateKind::softplus;
  EXPECT_EQ(fault().code, Code::A_log_missing);
  options.gate = GateKind::bounded;
  EXPECT_THAT(faults(), testing::IsEmpty());
  for (const double bound : {0.0, 1.0, static_cast<double>(NAN), -HUGE_VAL, -1e39, -1e-39}) {
    options.lower_bound = bound;
    EXPECT_EQ(fault().code, Code::lower_bound_invalid);
  }
  options.lower_bound = -3;
  Owned bias(DType::f32, {4});
  args.dt_bias = bias.view();
  expect(Code::dt_bias_shape, "dt_bias");
  Owned flat(DType::f32, {64}), A_log(DType::f32, {4});
  args.dt_bias = flat.view();
  args.A_log = A_log.view();
  EXPECT_THAT(faults(), testing::IsEmpty());
  options.gate = GateKind::given;
  EXPECT_THAT(codes(), UnorderedElementsAre(Code::options_conflict, Code::options_conflict));
}

TEST_F(KdaChecks, Options) {
  options.scale = NAN;
  expect(Code::scale_invalid, "scale");
  options.scale = 1e39;
  expect(Code::scale_invalid, "scale");
  options.scale = {};
  options.chunk_size = 48;
  EXPECT_THAT(faults(), testing::IsEmpty()) << "the recurrence has no chunks";
  op = Op::kda_chunk;
  EXPECT_EQ(fault().code, Code::chunk_size_invalid);
  context.implementation = "cpu/nothing";
  options.chunk_size = 64;
  EXPECT_EQ(fault().code, Code::implementation_unknown);
}

TEST_F(KdaChecks, ChunkSizesAreReportedAsGiven) {
  op = Op::kda_chunk;
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-16}, std::int64_t{1} << 40}) {
    options.chunk_size = size;
    expect(Code::chunk_size_invalid, "chunk_size");
    EXPECT_EQ(fault().value, std::to_string(size));
    EXPECT_THROW(static_cast<void>(kda_chunk_count(batch, size)), Error);
  }
}

TEST_F(KdaChecks, WhatOnlyOneFormTakes) {
  Owned channels(DType::f32, {1, 8, 4, 24}), states(DType::f32, {3, 4, 16, 24});
  args.beta = channels.view();
  EXPECT_THAT(faults(), testing::IsEmpty());
  op = Op::kda_chunk;
  expect(Code::beta_per_channel, "beta");
  args.beta = c.beta.view();
  args.chunk_states = states.view();
  EXPECT_THAT(faults(), testing::IsEmpty());
  args.chunk_states = reshape(states.view(), {2, 4, 16, 24});
  expect(Code::tensor_shape, "chunk_states");
  op = Op::kda_recurrent;
  EXPECT_EQ(fault().code, Code::chunk_states_unsupported);
}

TEST_F(KdaChecks, Outputs) {
  args.out = args.v;
  expect(Code::outputs_overlap, "out");
  args.out = reshape(c.out.view(), {1, 8, 4, 12});
  expect(Code::tensor_shape, "out");
  Owned half(DType::bf16, {1, 8, 4, 24});
  args.out = half.view();
  expect(Code::tensor_dtype, "out");
  args.out = {};
  expect(Code::tensor_missing, "out");
  args.out = c.out.view();
  args.final_state = args.initial_state;
  expect(Code::outputs_overlap, "final_state");
}

TEST_F(KdaChecks, BoundariesThatDoNotFit) {
  const auto with = [&](std::vector<std::int64_t> cu) {
    const BatchSpec spec{.cu_seqlens_q = TensorView::of(cu)};
    args.initial_state = args.final_state = {};
    return check_kda(op, args, &spec, options);
  };
  EXPECT_THAT(with({0, 8}), testing::IsEmpty());
  EXPECT_EQ(with({0, 7}).front().code, Code::rows_after_end);
  EXPECT_EQ(with({0, 9}).front().code, Code::boundaries_end);
  EXPECT_EQ(with({0, 5, 3, 8}).front().code, Code::boundaries_decrease);
  EXPECT_EQ(with({1, 8}).front().code, Code::boundaries_start);
  // Faults of the boundaries and of the tensors come in one list.
  args.A_log = {};
  options.gate = GateKind::softplus;
  EXPECT_EQ(with({1, 8}).size(), 2U);
  batch = PackedBatch::from_lengths(c.s.lengths, c.s.lengths);
  options.gate = GateKind::given;
  EXPECT_EQ(fault().code, Code::keys_boundaries);
}

TEST_F(KdaChecks, PositiveGatesInFullChecksOnly) {
  c.g.set(16 * 4 * 2 + 16 + 3, 0.5F);
  EXPECT_THAT(faults(), testing::IsEmpty());
  context.check_level = CheckLevel::full;
  EXPECT_EQ(fault().code, Code::gate_positive);
  EXPECT_EQ(fault().position, "[0, 2, 1, 3]");
}

TEST_F(KdaChecks, RefusedCallsWriteNothing) {
  args.beta = {};
  const auto before = c.out.bytes();
  EXPECT_THROW(kda_recurrent(args, batch, options), Error);
  EXPECT_THROW(kda_chunk(args, batch, options), Error);
  EXPECT_EQ(c.out.bytes(), before);
}

TEST_F(KdaChecks, ForcedImplementationsRunOrSayWhyNot) {
  context.implementation = "ref/kda_recurrent";
  EXPECT_NO_THROW(kda_recurrent(args, batch, options, context));
  const auto names = implementations(Op::kda_recurrent);
  EXPECT_EQ(names.back(), "ref/kda_recurrent");
  inject_faults({.hide_simd = true});
  for (const Verdict& verdict : why_kda(op, args, &batch, options)) {
    const bool vectors = verdict.implementation.starts_with("cpu/");
    const bool reference = verdict.implementation.starts_with("ref/");
    EXPECT_EQ(verdict.declined.has_value(), !reference) << verdict.implementation;
    if (!vectors) continue;  // rows for a GPU decline tensors on the host
    EXPECT_EQ(verdict.declined->code, Code::simd_missing);
    context.implementation = verdict.implementation;
    EXPECT_THROW(kda_recurrent(args, batch, options, context), Error);
  }
  inject_faults({});
}

}  // namespace
}  // namespace packattn::test
