// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/attention_params.h"

namespace packattn::cuda::sm90 {

constexpr int forward_rows = 128;  ///< packed query rows of a block

/// Head sizes that are compiled; others are padded into the next.
enum class ForwardBucket { d64, d128, d192_128, d192, d256 };

/// Keys of a tile: part of the implementation's bits.
constexpr int forward_keys(ForwardBucket bucket) {
  return bucket == ForwardBucket::d192 || bucket == ForwardBucket::d256 ? 64 : 128;
}

struct ForwardLaunch {
  CUtensorMap q, k, v;
  std::int32_t* next;           ///< counts the items that blocks have taken; 0 before the launch
  std::int32_t tile_rows;       ///< query tokens of a tile
  std::int32_t head_chunk;      ///< query heads of a tile, beside each other
  std::uint32_t inverse_chunk;  ///< 2^16 / head_chunk, rounded up
  std::int32_t head_slots;      ///< chunks of heads
  std::int32_t part_keys;       ///< keys that one copy brings: a tile, or what a page has of it
  std::int32_t blocks;
};

struct ForwardPlan : Plan {
  ForwardPlan(const AttentionCall& call, int tile_rows)
      : schedule(call.batch, call.args.q.size(0), call.problem.device, tile_rows) {}
  Schedule schedule;
  ForwardBucket bucket{};
  int head_chunk = 1;
  int blocks = 1;
};
std::shared_ptr<const ForwardPlan> plan_forward(const AttentionCall& call);
/// Launches the kernel.
void run_forward(const ForwardPlan& plan, const AttentionCall& call, AttentionRun& now);

/// What the kernels on the copy engine decline, under this name.
std::optional<Fault> decline_hopper(std::string_view who, const AttentionCall& call);
/// Keys or values in boxes of 64 elements by `part_keys` rows; packed rows are one page of all
/// rows.
CUtensorMap key_map(const AttentionCall& call, const TensorView& t, int part_keys);

void launch_attention_forward_bf16(const AttentionParams& p, const ForwardLaunch& launch,
                                   ForwardBucket bucket, cudaStream_t stream);
void launch_attention_forward_f16(const AttentionParams& p, const ForwardLaunch& launch,
                                  ForwardBucket bucket, cudaStream_t stream);

}  // namespace packattn::cuda::sm90
