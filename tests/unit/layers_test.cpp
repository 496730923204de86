// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "unit/layer_support.h"

namespace packattn::test {
namespace {

TEST(KdaGate, EqualsTheFormula) {
  const std::int64_t T = 5, HV = 3, K = 21;
  Owned g = noise(DType::f32, {2, T, HV, K}, 1), A_log = noise(DType::f32, {HV}, 2);
  Owned bias = noise(DType::f32, {HV * K}, 3), out(DType::f32, {2, T, HV, K});
  g.set(0, 50), g.set(1, -200), g.set(2, 20), g.set(3, 1e4F);
  for (const GateKind kind : {GateKind::softplus, GateKind::bounded}) {
    for_each_implementation(Op::kda_gate, [&](const Context& context) {
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
      for_each_implementation(Op::l2norm, [&](const Context& context) {
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
  for_each_implementation(Op::l2norm, [&](const Context& context) {
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
      for_each_implementation(Op::gated_rms_norm, [&](const Context& context) {
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

}  // namespace
}  // namespace packattn::test
