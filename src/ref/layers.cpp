// SPDX-License-Identifier: Apache-2.0
// The neighbours of KDA in fp64: gate, norms, short convolution. include/packattn/layers.h has the
// formulas.
#include <cmath>
#include <vector>

#include "ref/kda_token.h"
#include "ref/ref.h"

namespace packattn::ref {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

template <class Call>
std::optional<Fault> accept(const Call&) {
  return {};
}

template <class Call>
std::shared_ptr<const Plan> no_plan(const Call&, int) {
  return std::make_shared<Plan>();
}

void run_gate(const KdaCall& call, const Plan&, const RunContext&) {
  const TensorView &g = call.args.g, &out = call.args.out;
  for (std::int64_t b = 0; b < g.size(0); ++b) {
    for (std::int64_t t = 0; t < g.size(1); ++t) {
      for (std::int64_t h = 0; h < g.size(2); ++h) {
        for (std::int64_t d = 0; d < g.size(3); ++d) {
          const auto at = [&](const TensorView& x) {
            return b * x.stride(0) + t * x.stride(1) + h * x.stride(2) + d;
          };
          write(out, at(out), log_decay(call, read(g, at(g)), h, d));
        }
      }
    }
  }
}

void run_l2norm(const L2NormCall& call, const Plan&, const RunContext&) {
  const Rows x(call.args.x), out(call.args.out);
  for (std::int64_t row = 0; row < call.problem.rows; ++row) {
    double sum = call.eps;
    for (std::int64_t d = 0; d < call.problem.width; ++d) {
      sum += std::pow(read(call.args.x, x.offset(row) + d), 2);
    }
    for (std::int64_t d = 0; d < call.problem.width; ++d) {
      write(call.args.out, out.offset(row) + d,
            read(call.args.x, x.offset(row) + d) / std::sqrt(sum));
    }
  }
}

void run_gated_rms_norm(const GatedRmsNormCall& call, const Plan&, const RunContext&) {
  const GatedRmsNormArgs& a = call.args;
  const Rows x(a.x), gate(a.gate), residual(a.residual), out(a.out), residual_out(a.residual_out);
  std::vector<double> r(static_cast<std::size_t>(call.problem.width));
  for (std::int64_t row = 0; row < call.problem.rows; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < r.size(); ++i) {
      const auto d = static_cast<std::int64_t>(i);
      r[i] = read(a.x, x.offset(row) + d);
      if (a.residual.present()) r[i] += read(a.residual, residual.offset(row) + d);
      if (a.residual_out.present()) write(a.residual_out, residual_out.offset(row) + d, r[i]);
      squares += r[i] * r[i];
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(r.size()) + call.options.eps);
    for (std::size_t i = 0; i < r.size(); ++i) {
      const auto d = static_cast<std::int64_t>(i);
      double y = r[i] * scale;
      if (a.weight.present()) y *= read(a.weight, d);
      if (a.bias.present()) y += read(a.bias, d);
      if (a.gate.present()) {
        const double z = read(a.gate, gate.offset(row) + d);
        y *= sigmoid(z) * (call.options.activation == GateActivation::swish ? z : 1);
      }
      write(a.out, out.offset(row) + d, y);
    }
  }
}

/// The inputs of one channel, the W - 1 before the sequence first.
std::vector<double> channel(const ShortConvolutionCall& call, const KdaSequence& s,
                            std::int64_t c) {
  std::vector<double> x;
  for (std::int64_t i = 0; i + 1 < call.taps; ++i) {
    const TensorView& state = call.initial;
    const std::int64_t at = s.initial < 0 ? 0 : s.initial * state.stride(0) + c * state.stride(1);
    x.push_back(s.initial < 0 ? 0 : read(state, at + i));
  }
  for (std::int64_t t = s.start; t < s.start + s.length; ++t) {
    x.push_back(read(call.args.x, t * call.args.x.stride(0) + c));
  }
  return x;
}

void run_convolution(const ShortConvolutionCall& call, const Plan&, const RunContext&) {
  const ShortConvolutionArgs& a = call.args;
  for (const KdaSequence& s : call.sequences) {
    if (s.skipped || s.length == 0) continue;
    for (std::int64_t c = 0; c < call.problem.width; ++c) {
      const std::vector<double> x = channel(call, s, c);
      for (std::int64_t t = 0; t < s.length; ++t) {
        double y = a.bias.present() ? read(a.bias, c) : 0;
        for (std::int64_t i = 0; i < call.taps; ++i) {
          y += read(a.weight, c * a.weight.stride(0) + i) * x[static_cast<std::size_t>(t + i)];
        }
        write(a.out, (s.start + t) * a.out.stride(0) + c, call.silu ? y * sigmoid(y) : y);
      }
      for (std::int64_t i = 0; s.final >= 0 && i + 1 < call.taps; ++i) {
        write(call.final, s.final * call.final.stride(0) + c * call.final.stride(1) + i,
              x[static_cast<std::size_t>(s.length + i)]);
      }
    }
  }
}

}  // namespace

KdaImplementation kda_gate() { return {"ref/kda_gate", accept, no_plan, run_gate}; }
L2NormImplementation l2norm() { return {"ref/l2norm", accept, no_plan, run_l2norm}; }
GatedRmsNormImplementation gated_rms_norm() {
  return {"ref/gated_rms_norm", accept, no_plan, run_gated_rms_norm};
}
ShortConvolutionImplementation short_convolution() {
  return {"ref/short_convolution", accept, no_plan, run_convolution};
}

}  // namespace packattn::ref
