// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "packattn/attention.h"
#include "packattn/kda.h"

// A second reading of docs/mathematics.md, in fp64 over plain arrays, one sequence at a time. It
// shares nothing with the library's reference: what both say is taken to be true.

namespace packattn::test {

struct AttentionOracleInput {
  std::int64_t lq = 0, lk = 0, hq = 0, hk = 0, d = 0, dv = 0;
  const float* q = nullptr;  ///< [lq, hq, d]
  const float* k = nullptr;  ///< [lk, hk, d]
  const float* v = nullptr;  ///< [lk, hk, dv]
  double scale = 1;
  double softcap = 0;
  bool causal = false;
  Align align = Align::bottom_right;
  Window window = {};
  const float* slopes = nullptr;  ///< [hq]
  const float* sinks = nullptr;   ///< [hq]
};
struct AttentionOracle {
  std::vector<double> out;  ///< [lq, hq, dv]
  std::vector<double> lse;  ///< [hq, lq]
};
AttentionOracle attention_oracle(const AttentionOracleInput& in);

struct KdaOracleInput {
  std::int64_t t = 0, h = 0, hv = 0, k_dim = 0, v_dim = 0;
  const float* q = nullptr;        ///< [t, h, k_dim]
  const float* k = nullptr;        ///< [t, h, k_dim]
  const float* v = nullptr;        ///< [t, hv, v_dim]
  const float* g = nullptr;        ///< [t, hv, k_dim] or [t, hv]
  const float* beta = nullptr;     ///< [t, hv] or [t, hv, v_dim]
  const float* A_log = nullptr;    ///< [hv]
  const float* dt_bias = nullptr;  ///< [hv, k_dim]
  const float* initial = nullptr;  ///< [hv, k_dim, v_dim]
  bool gate_per_head = false;
  bool beta_per_channel = false;
  KdaOptions options = {};
};
struct KdaOracle {
  std::vector<double> out;                  ///< [t, hv, v_dim]
  std::vector<double> final;                ///< [hv, k_dim, v_dim]
  std::vector<std::vector<double>> states;  ///< after each token, if asked for
};
KdaOracle kda_oracle(const KdaOracleInput& in, bool every_state = false);

}  // namespace packattn::test
