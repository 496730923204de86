// SPDX-License-Identifier: Apache-2.0
#include "packattn/layers.h"

#include <gmock/gmock.h>

#include "unit/kda_support.h"

namespace packattn::test {
namespace {

/// Calls f(name) for every implementation of a layer that runs on this machine.
template <class F>
void for_each_implementation(Layer layer, F&& f) {
  for (const std::string& name : implementations(layer)) {
    SCOPED_TRACE(name);
    try {
      f(Context{.threads = 2, .implementation = name});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::implementation_declined) << error.what();
    }
  }
}

Owned noise(DType dtype, std::vector<std::int64_t> shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return Owned(dtype, std::move(shape)).fill([&](std::int64_t) { return normal(random); });
}

double tolerance(DType out) { return out == DType::f32 ? 3e-7 : out == DType::f16 ? 4e-4 : 2.5e-3; }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(KdaGate, EqualsTheFormula) {
  const std::int64_t T = 5, HV = 3, K = 21;
  Owned g = noise(DType::f32, {2, T, HV, K}, 1), A_log = noise(DType::f32, {HV}, 2);
  Owned bias = noise(DType::f32, {HV * K}, 3), out(DType::f32, {2, T, HV, K});
  g.set(0, 50), g.set(1, -200), g.set(2, 20), g.set(3, 1e4F);
  for (const GateKind kind : {GateKind::softplus, GateKind::bounded}) {
    for_each_implementation(Layer::kda_gate, [&](const Context& context) {
      kda_gate({g.view(), A_log.view(), bias.view(), out.view()}, {.gate = kind, .lower_bound = -3},
               context);
      std::vector<double> expected;
      for (std::int64_t i = 0; i < g.numel(); ++i) {
        const double rate = std::exp(double(A_log[i / K % HV])),
                     x = double(g[i]) + bias[i % (HV * K)];
        expected.push_back(kind == GateKind::bounded
                               ? -3 * sigmoid(rate * x)
                               : -rate * (x > 20 ? x : std::log1p(std::exp(x))));
        EXPECT_NEAR(out[i], expected.back(), 1e-6 * std::abs(expected.back()) + 1e-12) << i;
      }
    });
  }
}

TEST(KdaGate, TakesWhatKdaTakesAndNoMore) {
  Owned g(DType::f32, {1, 2, 3, 4}), out(DType::f32, {1, 2, 3, 4}), A_log(DType::f32, {3});
  EXPECT_EQ(check_kda_gate({.g = g.view(), .out = out.view()}).front().code, Code::A_log_missing);
  const KdaGateArgs args{.g = g.view(), .A_log = A_log.view(), .out = out.view()};
  EXPECT_THAT(check_kda_gate(args), testing::IsEmpty());
  EXPECT_EQ(check_kda_gate(args, {.gate = GateKind::given}).size(), 2U);
  EXPECT_EQ(check_kda_gate(args, {.gate = GateKind::bounded, .lower_bound = 1}).front().code,
            Code::lower_bound_invalid);
  EXPECT_EQ(check_kda_gate({.g = g.view(), .A_log = A_log.view(), .out = g.view()}).front().code,
            Code::outputs_overlap);
}

TEST(L2Norm, AnySizeAndType) {
  for (const std::int64_t D : {1, 3, 64, 100, 1025, 20000}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Owned x = noise(dtype, {2, 3, D}, 1);
      for_each_implementation(Layer::l2norm, [&](const Context& context) {
        Owned out(dtype, {2, 3, D});
        l2norm({x.view(), out.view()}, {}, context);
        std::vector<double> expected;
        for (std::int64_t row = 0; row < 6; ++row) {
          double sum = 1e-6;
          for (std::int64_t d = 0; d < D; ++d) sum += std::pow(double(x[row * D + d]), 2);
          for (std::int64_t d = 0; d < D; ++d) expected.push_back(x[row * D + d] / std::sqrt(sum));
        }
        EXPECT_LT(relative_error(out, expected), tolerance(dtype)) << D;
      });
    }
  }
}

TEST(L2Norm, StridesAndRowsOfZeroAndNaN) {
  Owned wide = noise(DType::f32, {4, 2, 50}, 1);
  for (int i = 0; i < 50; ++i) wide.set(i, 0);
  wide.set(150, NAN);
  const std::vector<std::int64_t> sizes{4, 2, 30}, strides{100, 50, 1};
  const TensorView x(wide.view().as<float>(), DType::f32, Device{}, sizes, strides);
  for_each_implementation(Layer::l2norm, [&](const Context& context) {
    Owned out(DType::f32, {4, 2, 30});
    l2norm({x, out.view()}, {}, context);
    EXPECT_EQ(out[5], 0);
    EXPECT_TRUE(std::isnan(out[3 * 30]));
    double sum = 1e-6;
    for (std::int64_t d = 0; d < 30; ++d) sum += std::pow(double(wide[350 + d]), 2);
    EXPECT_NEAR(out[7 * 30 + 3], wide[353] / std::sqrt(sum), 1e-7);
    for (std::int64_t i = 0; i < 90; ++i) EXPECT_FALSE(std::isnan(out[i]));
  });
  Owned empty(DType::f32, {0, 5}), none(DType::f32, {0, 5});
  EXPECT_NO_THROW(l2norm({empty.view(), none.view()}));
}

TEST(GatedRmsNorm, EveryCombination) {
  const std::int64_t T = 7;
  for (const std::int64_t D : {40, 1500}) {
    for (int mask = 0; mask < 32; ++mask) {
      const DType dtype = mask % 3 == 0 ? DType::bf16 : DType::f32;
      Owned x = noise(dtype, {T, D}, 1), z = noise(DType::f32, {T, D}, 2);
      Owned weight = noise(DType::f32, {D}, 3), bias = noise(dtype, {D}, 4);
      Owned residual = noise(DType::f32, {T, D}, 5);
      const auto use = [&](int bit, Owned& t) {
        return (mask >> bit & 1) != 0 ? t.view() : TensorView{};
      };
      const GatedRmsNormOptions options{
          .eps = 1e-5,
          .activation = mask % 2 == 0 ? GateActivation::swish : GateActivation::sigmoid};
      for_each_implementation(Layer::gated_rms_norm, [&](const Context& context) {
        Owned out(dtype, {T, D}), sum(DType::f32, {T, D});
        const GatedRmsNormArgs args{.x = x.view(),
                                    .gate = use(0, z),
                                    .weight = use(1, weight),
                                    .bias = use(2, bias),
                                    .residual = use(3, residual),
                                    .out = out.view(),
                                    .residual_out = use(4, sum)};
        gated_rms_norm(args, options, context);
        std::vector<double> expected, sums;
        for (std::int64_t t = 0; t < T; ++t) {
          double squares = 0;
          for (std::int64_t d = t * D; d < (t + 1) * D; ++d) {
            sums.push_back(double(x[d]) + (args.residual.present() ? residual[d] : 0));
            squares += sums.back() * sums.back();
          }
          for (std::int64_t d = 0; d < D; ++d) {
            double y =
                sums[static_cast<std::size_t>(t * D + d)] / std::sqrt(squares / double(D) + 1e-5);
            if (args.weight.present()) y *= weight[d];
            if (args.bias.present()) y += bias[d];
            const double gate = z[t * D + d];
            if (args.gate.present()) {
              y *= sigmoid(gate) * (options.activation == GateActivation::swish ? gate : 1);
            }
            expected.push_back(y);
          }
        }
        EXPECT_LT(relative_error(out, expected), tolerance(dtype)) << mask;
        if (args.residual_out.present()) {
          EXPECT_LT(relative_error(sum, sums), 1e-7);
        }
      });
    }
  }
}

TEST(GatedRmsNorm, FaultsAllAtOnce) {
  Owned x(DType::f32, {4, 8}), z(DType::f32, {4, 7}), w(DType::f32, {9}), out(DType::f64, {4, 8});
  std::vector<Code> codes;
  for (const Fault& f : check_gated_rms_norm(
           {.x = x.view(), .gate = z.view(), .weight = w.view(), .out = out.view()}, {.eps = -1})) {
    codes.push_back(f.code);
  }
  EXPECT_THAT(codes, testing::UnorderedElementsAre(Code::tensor_shape, Code::tensor_shape,
                                                   Code::tensor_dtype, Code::option_value));
}

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
    for_each_implementation(Layer::short_convolution, [&](const Context& context) {
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
  for_each_implementation(Layer::short_convolution, [&](const Context& context) {
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
  for_each_implementation(Layer::short_convolution, [&](const Context& context) {
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

}  // namespace
}  // namespace packattn::test
