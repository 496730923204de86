// SPDX-License-Identifier: Apache-2.0
// The chunked form of Kimi Delta Attention (Kimi Linear, arXiv:2510.26692): C tokens at a time
// around the state S before them. With D_ij[d] = exp(g_{j+1}[d] + .. + g_i[d]), D_i0 counted from
// the start of the chunk:
//
//   A_ij = beta_i sum_d k_i k_j D_ij      j < i          M = (I + A)^-1
//   W = M diag(beta) (K .* D_i0)          U = M diag(beta) V
//   E = U - W S                           row i is the delta e_i of the recurrence
//   O = (scale Q .* D_i0) S + B E         B_ij = sum_d scale q_i k_j D_ij, j <= i
//   S' = diag(D_C0) S + (K .* D_Cj)^T E
//
// D_ij is built by adding gates backwards from i, so that no exponent is ever positive and no two
// long sums are subtracted: gates of -1000 and -infinity are exact.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ref/kda_token.h"
#include "ref/ref.h"

namespace packattn::ref {
namespace {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

Matrix zeros(std::size_t rows, std::size_t columns) { return Matrix(rows, Row(columns)); }

/// Calls f(j, D_ij) for j = i, i - 1, .., 0 (D_ii = 1) and then f(-1, D_i0).
template <class F>
void for_each_decay(const std::vector<KdaToken>& tokens, std::size_t i, F&& f) {
  Row sum(tokens[i].g.size()), decay(sum.size(), 1.0);
  for (auto j = static_cast<std::ptrdiff_t>(i); j >= 0; --j) {
    f(j, decay);
    for (std::size_t d = 0; d < sum.size(); ++d) {
      sum[d] += tokens[static_cast<std::size_t>(j)].g[d];
      decay[d] = std::exp(sum[d]);
    }
  }
  f(-1, decay);
}

double dot(const Row& a, const Row& b, const Row& decay) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d] * decay[d];
  return sum;
}

void add_scaled(Row& y, double a, const Row& x) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += a * x[i];
}

/// x^T S, added to y.
void add_product(Row& y, double a, const Row& x, const KdaState& S) {
  for (std::int64_t d = 0; d < S.K; ++d) {
    for (std::int64_t j = 0; j < S.V; ++j) {
      y[static_cast<std::size_t>(j)] += a * x[static_cast<std::size_t>(d)] * S.at(d, j);
    }
  }
}

/// One chunk: reads and replaces S, returns the rows of O.
Matrix run_chunk(const std::vector<KdaToken>& tokens, KdaState& S) {
  const std::size_t C = tokens.size(), K = tokens[0].k.size(), V = tokens[0].v.size();
  Matrix A = zeros(C, C), B = zeros(C, C), W = zeros(C, K), U = zeros(C, V), Q = zeros(C, K);
  for (std::size_t i = 0; i < C; ++i) {
    const KdaToken& x = tokens[i];
    for_each_decay(tokens, i, [&](std::ptrdiff_t at, const Row& decay) {
      const auto j = static_cast<std::size_t>(at);
      for (std::size_t d = 0; at < 0 && d < K; ++d) {
        W[i][d] = x.beta[0] * x.k[d] * decay[d];
        Q[i][d] = x.q[d] * decay[d];
      }
      if (at >= 0) B[i][j] = dot(x.q, tokens[j].k, decay);
      if (at >= 0 && j < i) A[i][j] = x.beta[0] * dot(x.k, tokens[j].k, decay);
    });
    add_scaled(U[i], x.beta[0], x.v);
    for (std::size_t j = 0; j < i; ++j) {  // M by forward substitution
      add_scaled(W[i], -A[i][j], W[j]);
      add_scaled(U[i], -A[i][j], U[j]);
    }
  }
  Matrix O = zeros(C, V);
  Matrix& E = U;
  for (std::size_t i = 0; i < C; ++i) {
    add_product(E[i], -1, W[i], S);
    add_product(O[i], 1, Q[i], S);
    for (std::size_t j = 0; j <= i; ++j) add_scaled(O[i], B[i][j], E[j]);
  }
  KdaState next = S;
  for_each_decay(tokens, C - 1, [&](std::ptrdiff_t at, const Row& decay) {
    if (at == static_cast<std::ptrdiff_t>(C) - 1) std::fill(next.S.begin(), next.S.end(), 0.0);
    for (std::int64_t d = 0; d < S.K; ++d) {
      const auto channel = static_cast<std::size_t>(d), j = static_cast<std::size_t>(at);
      const double weight = decay[channel] * (at < 0 ? 1 : tokens[j].k[channel]);
      for (std::int64_t c = 0; c < S.V; ++c) {
        next.at(d, c) += weight * (at < 0 ? S.at(d, c) : E[j][static_cast<std::size_t>(c)]);
      }
    }
  });
  S = std::move(next);
  return O;
}

void run_head(const KdaCall& call, const KdaSequence& sequence, std::int64_t first_chunk,
              std::int64_t head) {
  const KdaProblem& p = call.problem;
  KdaState S(p);
  S.load(call.initial, p.state_layout, sequence.initial, head);
  for (std::int64_t start = 0; start < sequence.length; start += p.chunk_size) {
    if (call.args.chunk_states.present()) {
      const std::int64_t chunk = first_chunk + start / p.chunk_size;
      S.store(call.args.chunk_states, p.state_layout, chunk, head);
    }
    const std::int64_t end = std::min(sequence.length, start + p.chunk_size);
    std::vector<KdaToken> tokens(static_cast<std::size_t>(end - start), KdaToken(p));
    for (std::int64_t t = start; t < end; ++t) {
      tokens[static_cast<std::size_t>(t - start)].read(call, sequence, t, head);
    }
    const Matrix O = run_chunk(tokens, S);
    for (std::int64_t t = start; t < end; ++t) {
      write_output(call, sequence, t, head, O[static_cast<std::size_t>(t - start)]);
    }
  }
  S.store(call.final, p.state_layout, sequence.final, head);
}

void run(const KdaCall& call, const Plan&, const RunContext& context) {
  const auto total = static_cast<std::int64_t>(call.sequences.size());
  std::int64_t done = 0, chunk = 0;
  for (const KdaSequence& sequence : call.sequences) {
    if (sequence.length > 0 && !sequence.skipped) {
      for (std::int64_t h = 0; h < call.problem.value_heads; ++h) {
        run_head(call, sequence, chunk, h);
      }
    }
    chunk += (sequence.length + call.problem.chunk_size - 1) / call.problem.chunk_size;
    if (context.progress) (*context.progress)(++done, total);
  }
}

std::optional<Fault> decline(const KdaCall&) { return {}; }

std::shared_ptr<const Plan> plan(const KdaCall&, int) { return std::make_shared<Plan>(); }

}  // namespace

KdaImplementation kda_chunk() { return {"ref/kda_chunk", decline, plan, run}; }

}  // namespace packattn::ref
