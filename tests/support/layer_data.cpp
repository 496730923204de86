// SPDX-License-Identifier: Apache-2.0
#include "support/layer_data.h"

#include <cmath>

#include "support/random.h"
#include "support/scalar.h"

namespace packattn::test {
namespace {

using Values = std::vector<float>;

Values normals(Random& random, std::int64_t count, DType dtype, double deviation = 1) {
  Values values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(rounded(dtype, deviation * random.normal()));
  }
  return values;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

LayerData::LayerData(const LayerCase& c) : shape(c) {
  Random random(seed_of(c.name));
  const std::int64_t row = c.row();
  for (const std::int64_t length : c.lengths) {
    LayerSequence s{.t = length};
    s.x = normals(random, length * row, c.dtype);
    if (c.gate) s.gate = normals(random, length * row, c.side_dtype);
    if (c.residual) s.residual = normals(random, length * row, c.side_dtype);
    if (c.reads_state()) s.initial = normals(random, row * (c.taps - 1), c.side_dtype);
    sequences.push_back(std::move(s));
  }
  if (c.convolves()) weight = normals(random, row * c.taps, c.side_dtype, 0.5);
  else if (c.weight) weight = normals(random, row, c.side_dtype);
  if (c.bias) bias = normals(random, row, c.side_dtype);
  if (c.op == Op::kda_gate && c.A_log) A_log = normals(random, c.heads, DType::f32, 0.5);
  if (c.dt_bias != Bias::none) dt_bias = normals(random, row, DType::f32);
}

LayerData LayerData::only(const std::vector<std::size_t>& order) const {
  LayerData part = *this;
  part.sequences.clear();
  for (const std::size_t n : order) part.sequences.push_back(sequences[n]);
  part.shape.boundaries = Boundaries::cu_int32;
  part.shape.form = Form::contiguous;
  part.shape.slots = part.shape.null_slots = false;
  if (shape.convolves()) {
    part.shape.state = shape.reads_state() ? KdaState::separate : KdaState::final_only;
  }
  return part;
}

LayerSequence LayerData::cut(std::size_t n, std::int64_t begin, std::int64_t end,
                             std::vector<float> initial) const {
  const LayerSequence& s = sequences[n];
  const auto rows = [&](const Values& values) {
    if (values.empty()) return Values{};
    return Values(values.begin() + begin * shape.row(), values.begin() + end * shape.row());
  };
  return {end - begin, rows(s.x), rows(s.gate), rows(s.residual), std::move(initial)};
}

LayerOracle LayerData::expected(std::size_t n) const {
  const LayerSequence& s = sequences[n];
  const LayerCase& c = shape;
  const auto row = static_cast<std::size_t>(c.row()), taps = static_cast<std::size_t>(c.taps);
  LayerOracle o;
  // Input t of channel d, from the state for t < 0.
  const auto input = [&](std::int64_t t, std::size_t d) -> double {
    if (t >= 0) return s.x[static_cast<std::size_t>(t) * row + d];
    if (s.initial.empty()) return 0;
    return s.initial[d * (taps - 1) + (taps - 1) - static_cast<std::size_t>(-t)];
  };
  for (std::int64_t t = 0; t < s.t; ++t) {
    double squares = 0;
    std::vector<double> r(row);
    for (std::size_t d = 0; d < row; ++d) {
      const std::size_t at = static_cast<std::size_t>(t) * row + d;
      r[d] = s.x[at] + (s.residual.empty() ? 0.0 : s.residual[at]);
      squares += r[d] * r[d];
    }
    for (std::size_t d = 0; d < row; ++d) {
      const std::size_t at = static_cast<std::size_t>(t) * row + d;
      double y = r[d];
      if (c.op == Op::l2norm) {
        y /= std::sqrt(squares + eps());
      } else if (c.op == Op::gated_rms_norm) {
        y /= std::sqrt(squares / static_cast<double>(row) + eps());
        if (!weight.empty()) y *= weight[d];
        if (!bias.empty()) y += bias[d];
        if (!s.gate.empty()) {
          const double z = s.gate[at];
          y *= sigmoid(z) * (c.activation == GateActivation::swish ? z : 1);
        }
        o.residual.push_back(r[d]);
      } else if (c.op == Op::kda_gate) {
        const std::size_t head = d / static_cast<std::size_t>(c.width);
        const double rate = A_log.empty() ? 1 : std::exp(static_cast<double>(A_log[head]));
        if (!dt_bias.empty()) y += dt_bias[d];
        y = c.gate_kind == GateKind::bounded ? -3 * sigmoid(rate * y)
                                             : -rate * (y > 20 ? y : std::log1p(std::exp(y)));
      } else {
        y = bias.empty() ? 0 : bias[d];
        for (std::size_t i = 0; i < taps; ++i) {
          const std::int64_t from = t - c.taps + 1 + static_cast<std::int64_t>(i);
          y += static_cast<double>(weight[d * taps + i]) * input(from, d);
        }
        if (c.silu) y *= sigmoid(y);
      }
      o.out.push_back(y);
    }
  }
  for (std::size_t d = 0; c.convolves() && d < row; ++d) {
    for (std::int64_t i = 1 - c.taps; i < 0; ++i) o.final.push_back(input(s.t + i, d));
  }
  return o;
}

}  // namespace packattn::test
