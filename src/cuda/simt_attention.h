// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <cuda_runtime_api.h>

#include "cuda/attention_params.h"

namespace packattn::cuda {

/// Keys are folded in segments of this many, counted from key 0: part of the implementation's bits.
constexpr std::int32_t segment_keys = 1024;
constexpr int simt_tile = 64;  ///< packed rows of a block
constexpr int simt_threads = 128;

/// Head sizes that are compiled; others are padded into the next.
enum class Bucket { d64, d128, d192_128, d256 };

/// The smallest that takes the problem's.
std::optional<Bucket> attention_bucket(const AttentionProblem& p);

struct SimtLaunch {
  int blocks;
  int tile_rows;   ///< query tokens of a tile
  int head_chunk;  ///< query heads of a tile
  int head_slots;  ///< key heads x chunks of their groups
  int segments;    ///< 1: a block folds all segments; more: each has a block of its own
  Bucket bucket;
  float* scratch;
};

void launch_simt_attention(const AttentionParams& p, const SimtLaunch& launch, DType dtype,
                           cudaStream_t stream);
void launch_simt_attention_f32(const AttentionParams& p, const SimtLaunch& launch,
                               cudaStream_t stream);

AttentionImplementation simt_attention();

}  // namespace packattn::cuda
