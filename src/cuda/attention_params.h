// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/attention_problem.h"
#include "cuda/device_plan.h"

namespace packattn::cuda {

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
/// The schedule, ready for kernels launched on `stream` after this.
DeviceBatch prepare_schedule(const AttentionCall& call, const Schedule& schedule,
                             DeviceWorkspace& workspace, cudaStream_t stream);
/// The longest key sequence that the tensors leave room for; exact if the host knows the lengths.
std::int64_t key_bound(const AttentionCall& call);

}  // namespace packattn::cuda
