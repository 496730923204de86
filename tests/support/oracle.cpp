// SPDX-License-Identifier: Apache-2.0
#include "support/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace packattn::test {
namespace {

// Any index or count of these small problems; keeps the formulas free of casts.
using Index = std::int64_t;

bool visible(const AttentionOracleInput& in, Index i, Index j) {
  const Index shift = in.align == Align::bottom_right ? in.lk - in.lq : 0;
  const Index ahead = j - (i + shift);  // of the diagonal; negative: behind it
  if (in.causal && ahead > 0) return false;
  if (in.window.left && -ahead > *in.window.left) return false;
  if (in.window.right && ahead > *in.window.right) return false;
  return true;
}

double score(const AttentionOracleInput& in, Index head, Index i, Index j) {
  const Index key_head = head * in.hk / in.hq;
  const float* q = in.q + (i * in.hq + head) * in.d;
  const float* k = in.k + (j * in.hk + key_head) * in.d;
  double x = 0;
  for (Index d = 0; d < in.d; ++d) x += static_cast<double>(q[d]) * k[d];
  x *= in.scale;
  if (in.softcap > 0) x = in.softcap * std::tanh(x / in.softcap);
  if (in.slopes != nullptr) {
    const Index shift = in.align == Align::bottom_right ? in.lk - in.lq : 0;
    x -= in.slopes[head] * std::fabs(static_cast<double>(i + shift - j));
  }
  return x;
}

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The log decay of one channel.
double decay(const KdaOracleInput& in, Index t, Index head, Index d) {
  const Index row = t * in.hv + head;
  const double r = in.gate_per_head ? in.g[row] : in.g[row * in.k_dim + d];
  const double bias = in.dt_bias != nullptr ? in.dt_bias[head * in.k_dim + d] : 0;
  const double rate = in.A_log != nullptr ? std::exp(in.A_log[head]) : 1;
  switch (in.options.gate) {
    case GateKind::given: return r;
    case GateKind::softplus: return -rate * softplus(r + bias);
    case GateKind::bounded: return in.options.lower_bound * sigmoid(rate * (r + bias));
  }
  return 0;
}

double write_strength(const KdaOracleInput& in, Index t, Index head, Index c) {
  const Index row = t * in.hv + head;
  const double r = in.beta_per_channel ? in.beta[row * in.v_dim + c] : in.beta[row];
  switch (in.options.beta) {
    case BetaKind::given: return r;
    case BetaKind::sigmoid: return sigmoid(r);
    case BetaKind::two_sigmoid: return 2 * sigmoid(r);
  }
  return 0;
}

std::vector<double> unit(const float* x, Index n, bool normalise) {
  std::vector<double> out(x, x + n);
  if (!normalise) return out;
  double sum = 1e-6;
  for (const double value : out) sum += value * value;
  for (double& value : out) value /= std::sqrt(sum);
  return out;
}

}  // namespace

AttentionOracle attention_oracle(const AttentionOracleInput& in) {
  AttentionOracle result;
  result.out.assign(static_cast<std::size_t>(in.lq * in.hq * in.dv), 0);
  result.lse.assign(static_cast<std::size_t>(in.hq * in.lq), 0);
  for (Index head = 0; head < in.hq; ++head) {
    for (Index i = 0; i < in.lq; ++i) {
      std::vector<Index> keys;
      std::vector<double> x;
      for (Index j = 0; j < in.lk; ++j) {
        if (!visible(in, i, j)) continue;
        keys.push_back(j);
        x.push_back(score(in, head, i, j));
      }
      std::vector<double> terms = x;
      if (in.sinks != nullptr) terms.push_back(in.sinks[head]);
      double lse = -std::numeric_limits<double>::infinity();
      if (!terms.empty()) {
        // max_element does not see a NaN; the sum does.
        const double top = *std::max_element(terms.begin(), terms.end());
        double sum = 0;
        for (const double term : terms) sum += std::exp(term - top);
        lse = top + std::log(sum);
      }
      result.lse[static_cast<std::size_t>(head * in.lq + i)] = lse;
      double* out = result.out.data() + (i * in.hq + head) * in.dv;
      const Index key_head = head * in.hk / in.hq;
      for (std::size_t n = 0; n < keys.size(); ++n) {
        const double weight = std::exp(x[n] - lse);
        const float* v = in.v + (keys[n] * in.hk + key_head) * in.dv;
        for (Index c = 0; c < in.dv; ++c) out[c] += weight * v[c];
      }
    }
  }
  return result;
}

KdaOracle kda_oracle(const KdaOracleInput& in, bool every_state) {
  const double scale = in.options.scale.value_or(1 / std::sqrt(static_cast<double>(in.k_dim)));
  const Index head_state = in.k_dim * in.v_dim;
  KdaOracle result;
  result.out.assign(static_cast<std::size_t>(in.t * in.hv * in.v_dim), 0);
  result.final.assign(static_cast<std::size_t>(in.hv * head_state), 0);
  if (in.initial != nullptr) {
    std::copy_n(in.initial, result.final.size(), result.final.begin());
  }
  for (Index t = 0; t < in.t; ++t) {
    for (Index head = 0; head < in.hv; ++head) {
      const Index source = t * in.h + head / (in.hv / in.h);
      const auto q = unit(in.q + source * in.k_dim, in.k_dim, in.options.l2norm);
      const auto k = unit(in.k + source * in.k_dim, in.k_dim, in.options.l2norm);
      double* s = result.final.data() + head * head_state;
      for (Index d = 0; d < in.k_dim; ++d) {
        const double factor = std::exp(decay(in, t, head, d));
        for (Index c = 0; c < in.v_dim; ++c) s[d * in.v_dim + c] *= factor;
      }
      const Index row = (t * in.hv + head) * in.v_dim;
      std::vector<double> u(static_cast<std::size_t>(in.v_dim), 0), e(u), o(u);
      // Over d outside and c inside: the state's rows are contiguous.
      for (std::size_t d = 0; d < k.size(); ++d) {
        for (std::size_t c = 0; c < u.size(); ++c) u[c] += s[d * u.size() + c] * k[d];
      }
      for (std::size_t c = 0; c < e.size(); ++c) {
        const auto channel = static_cast<Index>(c);
        e[c] = write_strength(in, t, head, channel) * (in.v[row + channel] - u[c]);
      }
      for (std::size_t d = 0; d < k.size(); ++d) {
        for (std::size_t c = 0; c < e.size(); ++c) {
          double& entry = s[d * e.size() + c];
          entry += k[d] * e[c];
          o[c] += entry * scale * q[d];
        }
      }
      std::copy(o.begin(), o.end(), result.out.begin() + row);
    }
    if (every_state) result.states.push_back(result.final);
  }
  return result;
}

}  // namespace packattn::test
