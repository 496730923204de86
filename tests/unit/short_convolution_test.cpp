// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "unit/layer_support.h"

namespace packattn::test {
namespace {

struct Convolution : testing::Test {
  std::vector<std::int64_t> lengths{5, 0, 1, 2, 30};
  std::int64_t T = 38, D = 300, W = 4;
  Owned x = noise(DType::f32, {T, D}, 1), weight = noise(DType::f32, {D, W}, 2),
        bias = noise(DType::f32, {D}, 3), initial = noise(DType::f32, {5, D, W - 1}, 4),
        final = Owned(DType::f32, {5, D, W - 1}), out = Owned(DType::f32, {T, D});
  ShortConvolutionArgs args() {
    return {.x = x.view(),
            .weight = weight.view(),
            .bias = bias.view(),
            .out = out.view(),
            .initial_state = initial.view(),
            .final_state = final.view()};
  }
  PackedBatch batch() const { return PackedBatch::from_lengths(lengths); }
  /// Input t of sequence n, from its state for t < 0.
  double input(std::size_t n, std::int64_t start, std::int64_t t, std::int64_t c) const {
    return t >= 0 ? x[(start + t) * D + c]
                  : initial[(static_cast<std::int64_t>(n) * D + c) * (W - 1) + W - 1 + t];
  }
};

TEST_F(Convolution, EqualsTheFormulaAndKeepsItsState) {
  for (const bool silu : {false, true}) {
    for_each_implementation(Op::short_convolution, [&](const Context& context) {
      short_convolution(args(), batch(), {.silu = silu}, context);
      std::vector<double> expected, states;
      std::int64_t start = 0;
      for (std::size_t n = 0; n < lengths.size(); ++n) {
        for (std::int64_t t = 0; t < lengths[n]; ++t) {
          for (std::int64_t c = 0; c < D; ++c) {
            double y = bias[c];
            for (std::int64_t i = 0; i < W; ++i) {
              y += double(weight[c * W + i]) * input(n, start, t - W + 1 + i, c);
            }
            expected.push_back(silu ? y * sigmoid(y) : y);
          }
        }
        for (std::int64_t c = 0; c < D; ++c) {
          for (std::int64_t i = 0; i + 1 < W; ++i) {
            states.push_back(input(n, start, lengths[n] - W + 1 + i, c));
          }
        }
        start += lengths[n];
      }
      EXPECT_LT(relative_error(out, expected), 3e-7);
      EXPECT_EQ(relative_error(final, states), 0);
    });
  }
}

TEST_F(Convolution, InPiecesThroughTheState) {
  for_each_implementation(Op::short_convolution, [&](const Context& context) {
    lengths = {38};
    Owned state = noise(DType::f32, {3, D, W - 1}, 7), whole_state = state, pieces = out;
    std::vector<std::int64_t> slot{1};
    ShortConvolutionArgs a = args();
    a.initial_state = a.final_state = {};
    a.state = whole_state.view();
    a.slots = TensorView::of(slot);
    short_convolution(a, batch(), {}, context);
    a.state = state.view();
    const auto whole = out.bytes();
    for (const std::int64_t start : {0, 1, 3, 20}) {
      const std::int64_t end = start == 0 ? 1 : start == 1 ? 3 : start == 3 ? 20 : 38;
      a.x = TensorView(x.view().as<float>() + start * D, DType::f32, Device{},
                       std::vector{end - start, D});
      a.out = TensorView(pieces.view().as<float>() + start * D, DType::f32, Device{},
                         std::vector{end - start, D});
      short_convolution(a, PackedBatch::from_lengths(std::vector{end - start}), {}, context);
    }
    EXPECT_EQ(pieces.bytes(), whole);
    EXPECT_EQ(state.bytes(), whole_state.bytes());
  });
}

TEST_F(Convolution, NullSlotsLowPrecisionAndForeignNaN) {
  Owned half_x = noise(DType::bf16, {T, D}, 1), half_out(DType::bf16, {T, D});
  Owned pool = noise(DType::bf16, {6, D, W - 1}, 2);
  const Owned before = pool;
  for (std::int64_t i = 0; i < 5 * D; ++i) half_x.set(i, NAN);  // sequence 0, which is skipped
  std::vector<std::int32_t> slots{-1, 0, 5, 2, 3};
  for_each_implementation(Op::short_convolution, [&](const Context& context) {
    pool = before;
    short_convolution({.x = half_x.view(),
                       .weight = weight.view(),
                       .out = half_out.view(),
                       .state = pool.view(),
                       .slots = TensorView::of(slots)},
                      batch(), {.silu = true}, context);
    for (std::int64_t i = 0; i < 5 * D; ++i) EXPECT_EQ(half_out[i], 0);
    for (std::int64_t i = 5 * D; i < T * D; ++i) ASSERT_FALSE(std::isnan(half_out[i]));
    const std::size_t size = before.bytes().size() / 6;
    for (const std::size_t slot : {0U, 1U, 4U}) {
      EXPECT_EQ(
          std::memcmp(before.bytes().data() + slot * size, pool.bytes().data() + slot * size, size),
          0);
    }
  });
}

TEST_F(Convolution, Faults) {
  ShortConvolutionArgs a = args();
  const auto code = [&] { return check_short_convolution(a, batch()).front().code; };
  a.x = TensorView(a.x.data(), DType::f32, Device{}, std::vector<std::int64_t>{37, D});
  EXPECT_EQ(code(), Code::tensor_shape);  // out has another row count
  a = args();
  a.weight = {};
  EXPECT_EQ(code(), Code::tensor_missing);
  a = args();
  a.initial_state = Owned(DType::f32, {5, D, W}).view();
  EXPECT_EQ(code(), Code::tensor_shape);
  a = args();
  Owned four(DType::f32, {4, D, W - 1});
  a.initial_state = four.view();
  EXPECT_EQ(code(), Code::state_count);
  a = args();
  std::vector<std::int64_t> slots{0, 1, 2, 2, 7};
  a.slots = TensorView::of(slots);
  const auto faults = check_short_convolution(a, batch());
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_EQ(faults[0].code, Code::slot_duplicate);
  EXPECT_EQ(faults[1].code, Code::slot_range);
  a = args();
  a.state = final.view();
  EXPECT_EQ(code(), Code::state_sources);
  a = args();
  a.out = x.view();
  EXPECT_EQ(code(), Code::outputs_overlap);
}

TEST_F(Convolution, SlotsFitEveryPool) {
  // The pool that is read can be smaller than the one that is written.
  ShortConvolutionArgs a = args();
  Owned large(DType::f32, {9, D, W - 1});
  a.final_state = large.view();
  std::vector<std::int64_t> slots{0, 1, 2, 3, 7};
  a.slots = TensorView::of(slots);
  const auto faults = check_short_convolution(a, batch());
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults[0].code, Code::slot_range);
  EXPECT_EQ(faults[0].limit, "0 to 4");
}

TEST_F(Convolution, SlotsMayLieApartAndOnADevice) {
  ShortConvolutionArgs a = args();
  std::vector<std::int64_t> slots{4, -7, 3, -7, 2, -7, 1, -7, 0};
  const std::vector<std::int64_t> five{5}, two{2};
  a.slots = TensorView(slots.data(), DType::i64, Device{}, five, two);
  EXPECT_THAT(check_short_convolution(a, batch()), testing::IsEmpty());
  // Addresses that this process cannot read: the check has no business there.
  const auto on_device = [](const TensorView& t) {
    std::vector<std::int64_t> sizes;
    for (int dim = 0; dim < t.rank(); ++dim) sizes.push_back(t.size(dim));
    static std::uintptr_t next = std::uintptr_t{1} << 58;
    return TensorView(reinterpret_cast<void*>(next += std::uintptr_t{1} << 50), t.dtype(),
                      Device{DeviceType::cuda, 0}, sizes);
  };
  for (TensorView* t :
       {&a.x, &a.weight, &a.bias, &a.out, &a.initial_state, &a.final_state, &a.slots}) {
    *t = on_device(*t);
  }
  EXPECT_THAT(check_short_convolution(a, batch()), testing::IsEmpty());
}

TEST_F(Convolution, UnreadableBoundariesAreNotAlsoAWrongNumberOfStates) {
  const std::vector<std::int64_t> cu{0, 20, 10, 38};
  const auto faults =
      check_short_convolution(args(), BatchSpec{.cu_seqlens_q = TensorView::of(cu)});
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults.front().code, Code::boundaries_decrease);
  for (const Fault& f : faults) EXPECT_NE(f.code, Code::tensor_shape);
}

TEST(Why, EveryLayerAnswersForEachImplementation) {
  Owned x = noise(DType::f32, {4, 8}, 1), out(DType::f32, {4, 8});
  Owned g = noise(DType::f32, {1, 4, 1, 8}, 2), A_log(DType::f32, {1}),
        decay(DType::f32, {1, 4, 1, 8});
  Owned weight = noise(DType::f32, {8, 3}, 3);
  const std::vector<std::int64_t> lengths{4};
  inject_faults({.hide_simd = true});
  const auto expect = [](Op op, const std::vector<Verdict>& verdicts) {
    const auto names = implementations(op);
    ASSERT_EQ(verdicts.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(verdicts[i].implementation, names[i]);
      EXPECT_EQ(verdicts[i].declined.has_value(), !names[i].starts_with("ref/"));
    }
  };
  expect(Op::kda_gate, why_kda_gate({.g = g.view(), .A_log = A_log.view(), .out = decay.view()}));
  expect(Op::l2norm, why_l2norm({.x = x.view(), .out = out.view()}));
  expect(Op::gated_rms_norm, why_gated_rms_norm({.x = x.view(), .out = out.view()}));
  expect(Op::short_convolution,
         why_short_convolution({.x = x.view(), .weight = weight.view(), .out = out.view()},
                               PackedBatch::from_lengths(lengths)));
  inject_faults({});
  EXPECT_THROW(static_cast<void>(why_l2norm({.x = x.view()})), Error);
}

}  // namespace
}  // namespace packattn::test
