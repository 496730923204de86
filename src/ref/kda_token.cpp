// SPDX-License-Identifier: Apache-2.0
#include "ref/kda_token.h"

#include <cmath>

#include "core/half.h"

namespace packattn::ref {

double read(const TensorView& x, std::int64_t offset) {
  return with_float_type(x.dtype(), [&](auto type) -> double {
    return packattn::load(x.as<decltype(type)>()[offset]);
  });
}

void write(const TensorView& x, std::int64_t offset, double value) {
  with_float_type(x.dtype(), [&](auto type) {
    x.as<decltype(type)>()[offset] = packattn::store<decltype(type)>(static_cast<float>(value));
  });
}

namespace {

std::int64_t offset_of(const TensorView& x, const KdaSequence& s, std::int64_t t,
                       std::int64_t head) {
  return s.row * x.stride(0) + (s.start + t) * x.stride(1) + head * x.stride(2);
}

std::int64_t state_offset(const TensorView& x, StateLayout layout, std::int64_t row,
                          std::int64_t head, std::int64_t d, std::int64_t j) {
  const bool k_first = layout == StateLayout::k_first;
  return row * x.stride(0) + head * x.stride(1) + (k_first ? d : j) * x.stride(2) +
         (k_first ? j : d);
}

void read_row(const TensorView& x, std::int64_t offset, std::vector<double>& row) {
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = read(x, offset + static_cast<int>(i));
}

void normalise(std::vector<double>& x) {
  double sum = 1e-6;
  for (const double value : x) sum += value * value;
  for (double& value : x) value /= std::sqrt(sum);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

double write_strength(const KdaProblem& p, double r) {
  switch (p.beta) {
    case BetaKind::sigmoid: return sigmoid(r);
    case BetaKind::two_sigmoid: return 2 * sigmoid(r);
    default: return r;
  }
}

}  // namespace

double log_decay(const KdaCall& call, double r, std::int64_t head, std::int64_t d) {
  const KdaProblem& p = call.problem;
  if (p.gate == GateKind::given) return r;
  if (p.has_dt_bias) {
    const TensorView& bias = call.args.dt_bias;
    r += read(bias, bias.rank() == 2 ? head * bias.stride(0) + d * bias.stride(1)
                                     : (head * p.key_dim + d) * bias.stride(0));
  }
  const TensorView& A_log = call.args.A_log;
  const double rate = p.has_A_log ? std::exp(read(A_log, head * A_log.stride(0))) : 1;
  if (p.gate == GateKind::softplus) return -rate * softplus(r);
  return p.lower_bound * sigmoid(rate * r);
}

KdaToken::KdaToken(const KdaProblem& p)
    : q(static_cast<std::size_t>(p.key_dim)),
      k(q.size()),
      g(q.size()),
      v(static_cast<std::size_t>(p.value_dim)),
      beta(v.size()) {}

void KdaToken::read(const KdaCall& call, const KdaSequence& sequence, std::int64_t t,
                    std::int64_t head) {
  const KdaArgs& a = call.args;
  const KdaProblem& p = call.problem;
  read_row(a.q, offset_of(a.q, sequence, t, head / p.group()), q);
  read_row(a.k, offset_of(a.k, sequence, t, head / p.group()), k);
  read_row(a.v, offset_of(a.v, sequence, t, head), v);
  if (p.l2norm) {
    normalise(q);
    normalise(k);
  }
  for (double& value : q) value *= p.scale;

  const std::int64_t g_row = offset_of(a.g, sequence, t, head);
  for (std::size_t d = 0; d < g.size(); ++d) {
    const auto channel = static_cast<std::int64_t>(d);
    const double r = ref::read(a.g, g_row + (p.gate_per_head ? 0 : channel));
    g[d] = log_decay(call, r, head, channel);
  }
  const std::int64_t beta_row = offset_of(a.beta, sequence, t, head);
  for (std::size_t j = 0; j < beta.size(); ++j) {
    const std::int64_t channel = p.beta_per_channel ? static_cast<std::int64_t>(j) : 0;
    beta[j] = write_strength(p, ref::read(a.beta, beta_row + channel));
  }
}

KdaState::KdaState(const KdaProblem& p)
    : K(p.key_dim), V(p.value_dim), S(static_cast<std::size_t>(K * V)) {}

void KdaState::load(const TensorView& states, StateLayout layout, std::int64_t row,
                    std::int64_t head) {
  for (std::int64_t d = 0; d < K; ++d) {
    for (std::int64_t j = 0; j < V; ++j) {
      at(d, j) = row < 0 ? 0 : read(states, state_offset(states, layout, row, head, d, j));
    }
  }
}

void KdaState::store(const TensorView& states, StateLayout layout, std::int64_t row,
                     std::int64_t head) const {
  if (row < 0) return;
  for (std::int64_t d = 0; d < K; ++d) {
    for (std::int64_t j = 0; j < V; ++j) {
      write(states, state_offset(states, layout, row, head, d, j), at(d, j));
    }
  }
}

void write_output(const KdaCall& call, const KdaSequence& sequence, std::int64_t t,
                  std::int64_t head, const std::vector<double>& o) {
  const std::int64_t row = offset_of(call.args.out, sequence, t, head);
  for (std::size_t j = 0; j < o.size(); ++j) {
    write(call.args.out, row + static_cast<std::int64_t>(j), o[j]);
  }
}

}  // namespace packattn::ref
