// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/kda_problem.h"

// What both forms of the KDA reference read and write, in fp64.

namespace packattn::ref {

/// One token as one value head sees it: q and k normalised, q scaled, gate and beta evaluated.
struct KdaToken {
  explicit KdaToken(const KdaProblem& p);
  void read(const KdaCall& call, const KdaSequence& sequence, std::int64_t t, std::int64_t head);

  std::vector<double> q, k;     // [K]
  std::vector<double> g;        // [K], log decay
  std::vector<double> v, beta;  // [V]
};

/// The state S of one value head, [K, V], with its way in from and out to the caller's tensors.
struct KdaState {
  explicit KdaState(const KdaProblem& p);
  double& at(std::int64_t d, std::int64_t j) { return S[static_cast<std::size_t>(d * V + j)]; }
  double at(std::int64_t d, std::int64_t j) const { return S[static_cast<std::size_t>(d * V + j)]; }
  /// Zeros if `row` is -1.
  void load(const TensorView& states, StateLayout layout, std::int64_t row, std::int64_t head);
  /// Nothing if `row` is -1. The only place where a state is rounded.
  void store(const TensorView& states, StateLayout layout, std::int64_t row,
             std::int64_t head) const;

  std::int64_t K, V;
  std::vector<double> S;
};

/// The gate kinds: what a raw g becomes.
double log_decay(const KdaCall& call, double r, std::int64_t head, std::int64_t d);

/// One element of a floating type; `write` rounds once.
double read(const TensorView& x, std::int64_t offset);
void write(const TensorView& x, std::int64_t offset, double value);

void write_output(const KdaCall& call, const KdaSequence& sequence, std::int64_t t,
                  std::int64_t head, const std::vector<double>& o);

}  // namespace packattn::ref
