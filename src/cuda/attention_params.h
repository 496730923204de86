// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/attention_problem.h"
#include "cuda/device_plan.h"

namespace packattn::cuda {

/// Longer sequences would overflow the 32-bit positions within a sequence.
constexpr std::int64_t longest_sequence = std::int64_t{1} << 30;

/// A [rows, heads, dim] tensor as kernels address it; strides in elements.
struct Rows {
  void* data;
  std::int64_t row_stride;
  std::int64_t head_stride;
};

/// Keys or values: packed rows, or pages found through a block table.
struct KeyRows {
  const void* data;
  std::int64_t row_stride;  ///< of a packed row, or of a row within a page
  std::int64_t head_stride;
  std::int64_t page_stride;
};

/// What an attention kernel is launched with; legal numbers only.
struct AttentionParams {
  DeviceBatch batch;
  Rows q, out;
  KeyRows k, v;
  float* lse;  ///< null if not wanted
  std::int64_t lse_stride;
  std::int32_t page_size;
  const float* slopes;  ///< null without ALiBi
  std::int64_t slopes_sequence_stride, slopes_head_stride;
  const float* sinks;  ///< null without sinks
  std::int64_t sinks_stride;
  std::int32_t heads_k, group;
  std::int32_t head_dim, value_dim;
  float scale, softcap;
  /// Neither softcap nor ALiBi and scale > 0: scores stay unscaled until they are exponents.
  bool plain;
  std::int32_t left, right;  ///< window bounds as in MaskRule, at most 2^30
  bool bottom_right;
  bool out_fp32;
  bool aligned;  ///< rows start at multiples of 16 bytes
  /// Sequences of at most so many query tokens are another kernel's in this call; 0 if none is.
  std::int32_t decode_tokens;
};

/// Fills everything but the schedule.
AttentionParams attention_params(const AttentionCall& call);
/// How a run begins: its device is current, earlier faults of its stream are raised, memory for the
/// plan is there, and the schedule is ready for kernels launched on the stream after this.
struct AttentionRun {
  AttentionRun(const AttentionCall& call, const RunContext& context, const Plan& plan,
               const Schedule& schedule);
  DeviceGuard guard;
  cudaStream_t stream;
  DeviceWorkspace workspace;
  AttentionParams params;
};
/// The longest key sequence that the tensors leave room for; exact if the host knows the lengths.
std::int64_t key_bound(const AttentionCall& call);

}  // namespace packattn::cuda
