// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "packattn/kda.h"

namespace packattn::detail {
struct BatchState;
}

namespace packattn {

/// What a KDA call computes, in numbers that are all legal.
struct KdaProblem {
  DType dtype = DType::f32;  ///< of q, k and v
  DType out_dtype = DType::f32;
  DType gate_dtype = DType::f32;
  DType beta_dtype = DType::f32;
  DType state_dtype = DType::f32;  ///< of initial and final state; f32 without a state
  Device device;
  std::int64_t tokens = 0;       ///< T, rows of the tensors
  std::int64_t heads = 0;        ///< H, of q and k
  std::int64_t value_heads = 0;  ///< HV, of v, g, beta, out and state
  std::int64_t key_dim = 0;      ///< K
  std::int64_t value_dim = 0;    ///< V
  double scale = 1;
  GateKind gate = GateKind::given;
  BetaKind beta = BetaKind::given;
  double lower_bound = 0;
  bool l2norm = false;
  bool gate_per_head = false;     ///< g is [B, T, HV], one value for all key channels
  bool beta_per_channel = false;  ///< beta is [B, T, HV, V]
  bool has_A_log = false;
  bool has_dt_bias = false;
  StateLayout state_layout = StateLayout::k_first;
  std::int64_t chunk_size = 64;
  std::int64_t slot_columns = 0;  ///< S of slots [N, S]; 0 without columns

  std::int64_t group() const { return value_heads / heads; }
  friend bool operator==(const KdaProblem&, const KdaProblem&) = default;
};

/// One sequence with its state resolved: rows [start, start + length) of batch row `row`.
struct KdaSequence {
  std::int64_t row = 0;
  std::int64_t start = 0;
  std::int64_t length = 0;
  std::int64_t initial = -1;  ///< row of the initial state; -1 starts from zeros
  std::int64_t final = -1;    ///< row of the final state; -1 stores none (or columns do)
  bool skipped = false;       ///< null slot: output rows are 0, no state is read or written
};

/// Everything an implementation gets: legal by construction, nothing left to check.
struct KdaCall {
  const KdaArgs& args;
  const KdaProblem& problem;
  std::span<const KdaSequence> sequences;
  /// N * slot_columns pool rows: where the state after token t of sequence n is stored, -1 for
  /// not at all. Empty without slot columns.
  std::span<const std::int64_t> column_slots;
  TensorView initial;  ///< `state` or `initial_state`; absent for zeros
  TensorView final;    ///< `state` or `final_state`; absent if nobody asked
  // For devices, which read boundaries and slots themselves: the above knows neither of them.
  std::int64_t count = 0;  ///< N
  std::int64_t null_slot = -1;
  const detail::BatchState* batch = nullptr;  ///< null in the [B, T] form
};

}  // namespace packattn
