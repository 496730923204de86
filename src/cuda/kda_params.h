// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "core/kda_problem.h"
#include "cuda/device_plan.h"

namespace packattn::cuda {

/// A [B, T, heads, width] tensor as kernels address it; strides in elements.
struct KdaTensor {
  void* data;
  std::int64_t batch_stride, token_stride, head_stride;
  DType dtype;
};

/// A pool of states, [rows, HV, K, V] or V-first.
struct KdaPool {
  void* data;  ///< null if there is none
  std::int64_t rows;
  std::int64_t row_stride, head_stride;
  std::int64_t outer_stride;  ///< of k in the K-first layout, of v in the V-first one
  bool bf16;                  ///< fp32 otherwise
  bool vectors;               ///< what a lane moves is one or two aligned 16-byte words
};

/// Slots in device memory, [N] or [N, S], int32 or int64.
struct KdaSlotView {
  const void* data;  ///< null if not given
  std::int64_t sequence_stride, column_stride;
  std::int64_t columns;  ///< 1 for [N]
  bool wide;
};

/// A sequence's rows of the pools, -1 for none. Skipped: its outputs are 0, its state untouched.
struct KdaRow {
  std::int64_t initial, final;
  std::int32_t skipped;
};

/// What a KDA kernel is launched with; legal numbers only.
struct KdaParams {
  KdaTensor q, k, v, g, beta, out;
  const float* A_log;  ///< null without it
  std::int64_t A_log_stride;
  const float* dt_bias;  ///< null without it
  std::int64_t bias_head_stride, bias_channel_stride;
  KdaPool initial, final, chunk_states;
  KdaSlotView columns;  ///< where the state after each token goes; null without slot columns
  std::int64_t null_slot;
  DeviceBatch batch;          ///< sequences are null in the [B, T] form
  const KdaRow* rows;         ///< null: sequence n has row n
  std::int32_t count;         ///< N
  std::int32_t length;        ///< T of the [B, T] form
  std::int32_t heads, group;  ///< value heads, and how many of them share a key head
  std::int32_t key_dim, value_dim;
  double scale;
  float lower_bound;
  GateKind gate;
  BetaKind beta_kind;
  bool l2norm, gate_per_head, beta_per_channel, v_first;
  std::int32_t chunk_size;
};

/// Slots as they are to be resolved on the device.
struct KdaSlotInput {
  KdaSlotView read, write, accepted;
  bool shared;    ///< `slots` serves both sides
  bool in_place;  ///< both sides are one pool
  bool columns;   ///< write is [N, S]: one state a token
};

/// What a decode call finds out by itself, beside its KdaParams.
struct KdaStepInput {
  KdaSlotInput slots;
  bool resolve;                 ///< there are slots
  bool capacity;                ///< rows after the last sequence are no fault
  DeviceBoundaries boundaries;  ///< no data unless only the device has them
  std::int64_t rows;            ///< of the tensors
  StatusWord* status;
  int multiprocessors;
};

/// Sequences and slots that every block looks through by itself, and tokens a sequence on average,
/// that make a call a decode call.
constexpr std::int64_t kda_step_sequences = 1024;
constexpr std::int64_t kda_step_slots = 1 << 16;
constexpr std::int64_t kda_step_tokens = 4;
/// Heads times columns of all of them; chunks are counted in 32 bits.
constexpr std::int64_t kda_step_columns = 1 << 30;

/// Sizes of a lane's or thread's share of a state; `vectors` of a pool depends on them.
constexpr int kda_lane_columns = 8;
constexpr int kda_lane_keys(std::int64_t key_dim) {
  return key_dim <= 64 ? 2 : key_dim <= 128 ? 4 : 8;
}

/// Fills everything but the schedule and the rows.
KdaParams kda_params(const KdaCall& call);
KdaSlotInput kda_slot_input(const KdaCall& call);

/// The schedule of a batch's calls, a list of sequences, that every kernel works from.
struct KdaPlan : Plan {
  std::optional<Schedule> schedule;  ///< none in the [B, T] form
  std::size_t schedule_bytes() const { return schedule ? schedule->workspace_bytes() : 0; }
};
/// Makes the schedule; `workspace_bytes` becomes what the prelude takes at most.
void plan_kda(const KdaCall& call, KdaPlan& plan);

/// What precedes a kernel on its stream: the planner and the slots, where only the device has them.
KdaParams kda_prelude(const KdaCall& call, const KdaPlan& plan, DeviceWorkspace& workspace,
                      cudaStream_t stream);
/// What the prelude of this call takes from the workspace.
std::size_t kda_prelude_bytes(const KdaCall& call, const KdaPlan& plan);

/// Rows of every sequence from slots in device memory; what is wrong goes to the status word and
/// skips the sequences that it concerns.
void launch_kda_slots(const KdaParams& p, const KdaSlotInput& slots, KdaRow* rows,
                      StatusWord* status, cudaStream_t stream);

/// The recurrence with the planner's and kda_slots' work done inside.
void launch_kda_step(const KdaParams& p, const KdaStepInput& input, cudaStream_t stream);
void launch_kda_recurrent(const KdaParams& p, cudaStream_t stream);
void launch_kda_chunk(const KdaParams& p, cudaStream_t stream);

KdaImplementation simt_kda_recurrent();
KdaImplementation simt_kda_chunk();

}  // namespace packattn::cuda
