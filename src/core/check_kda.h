// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/batch_state.h"
#include "core/check_tensors.h"
#include "core/kda_problem.h"

namespace packattn {

/// A KDA call written down as numbers, with the state rows of every sequence resolved.
/// Meaningful only if no fault was added.
struct CheckedKda {
  KdaProblem problem;
  std::int64_t count = -1;             ///< N; -1 if the boundaries could not be read
  std::vector<KdaSequence> sequences;  ///< empty if the boundaries are only on a device
  std::vector<std::int64_t> column_slots;
  TensorView initial, final;
};

/// Checks tensors, states, slots, options and their fit with the batch, adding every fault.
/// `batch` is null for the [B, T] form, in which every batch row is a sequence.
CheckedKda check_kda_call(Op op, const KdaArgs& args, const detail::BatchState* batch,
                          const KdaOptions& options, CheckLevel level, FaultList& faults);

/// The states' half of it: layout, shapes, counts, slots, accepted tokens, chunk_states.
/// `checked.problem` and `checked.sequences` have rows and lengths already; without `shapes_known`
/// what depends on H, K and V is left out.
void check_kda_states(Op op, const KdaArgs& args, const KdaOptions& options, bool shapes_known,
                      CheckedKda& checked, FaultList& faults);

/// Slots of their pools: resolves the state rows of every sequence if they and the pools are right.
void check_kda_slots(Op op, const KdaArgs& args, const KdaOptions& options, bool pools_fit,
                     CheckedKda& checked, FaultList& faults);

/// The output, and that no output shares memory with an input or with another output.
void check_kda_output(const KdaArgs& args, bool q_fits, bool v_fits, CheckedKda& checked,
                      FaultList& faults);

/// Given gates above 0, which make the state grow: the first one. In full checks only, because the
/// mathematics is defined.
void check_gate_sign(const KdaArgs& args, const CheckedKda& checked, FaultList& faults);

/// What the gate kinds need, against `heads` value heads of K channels; -1 where not known.
struct GateArguments {
  GateKind gate;
  double lower_bound;
  const TensorView& A_log;
  const TensorView& dt_bias;
  NamedView beside;  ///< the tensor whose device they share
};
void check_gate_arguments(const GateArguments& arguments, std::int64_t heads, std::int64_t K,
                          FaultList& faults);

/// Chunks of one sequence.
std::int64_t count_chunks(std::int64_t length, std::int64_t chunk_size);
bool check_chunk_size(std::int64_t chunk_size, FaultList& faults);

}  // namespace packattn
