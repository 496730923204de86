// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention token by token (Kimi Linear, arXiv:2510.26692). For one value head,
// S in R^{K x V}, every token does
//
//   P = diag(exp g) S        decay
//   u = P^T k                what the decayed state returns for this key
//   e = beta (v - u)         delta
//   S = P + k e^T            write
//   o = S^T (scale q)        read, after the write
#include <cmath>

#include "ref/kda_token.h"
#include "ref/ref.h"

namespace packattn::ref {
namespace {

void step(const KdaToken& token, KdaState& S, std::vector<double>& o) {
  const std::int64_t K = S.K, V = S.V;
  const auto at = [](const std::vector<double>& x, std::int64_t i) {
    return x[static_cast<std::size_t>(i)];
  };
  for (std::int64_t d = 0; d < K; ++d) {
    const double decay = std::exp(at(token.g, d));
    for (std::int64_t j = 0; j < V; ++j) S.at(d, j) *= decay;
  }
  for (std::int64_t j = 0; j < V; ++j) {
    double u = 0;
    for (std::int64_t d = 0; d < K; ++d) u += S.at(d, j) * at(token.k, d);
    const double e = at(token.beta, j) * (at(token.v, j) - u);
    double read = 0;
    for (std::int64_t d = 0; d < K; ++d) {
      S.at(d, j) += at(token.k, d) * e;
      read += S.at(d, j) * at(token.q, d);
    }
    o[static_cast<std::size_t>(j)] = read;
  }
}

void run_head(const KdaCall& call, std::size_t n, std::int64_t head) {
  const KdaProblem& p = call.problem;
  const KdaSequence& sequence = call.sequences[n];
  KdaToken token(p);
  KdaState S(p);
  std::vector<double> o(token.v.size());

  S.load(call.initial, p.state_layout, sequence.initial, head);
  for (std::int64_t t = 0; t < sequence.length; ++t) {
    token.read(call, sequence, t, head);
    step(token, S, o);
    write_output(call, sequence, t, head, o);
    if (p.slot_columns > 0) {
      const auto column = n * static_cast<std::size_t>(p.slot_columns);
      const std::int64_t row = call.column_slots[column + static_cast<std::size_t>(t)];
      S.store(call.final, p.state_layout, row, head);
    }
  }
  S.store(call.final, p.state_layout, sequence.final, head);
}

void run(const KdaCall& call, const Plan&, const RunContext& context) {
  const auto total = static_cast<std::int64_t>(call.sequences.size());
  for (std::size_t n = 0; n < call.sequences.size(); ++n) {
    const KdaSequence& sequence = call.sequences[n];
    if (sequence.length > 0 && !sequence.skipped) {
      for (std::int64_t h = 0; h < call.problem.value_heads; ++h) run_head(call, n, h);
    }
    if (context.progress) (*context.progress)(static_cast<std::int64_t>(n) + 1, total);
  }
}

std::optional<Fault> decline(const KdaCall&) { return {}; }

std::shared_ptr<const Plan> plan(const KdaCall&, int) { return std::make_shared<Plan>(); }

}  // namespace

KdaImplementation kda_recurrent() { return {"ref/kda_recurrent", decline, plan, run}; }

}  // namespace packattn::ref
