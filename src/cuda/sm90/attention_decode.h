// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/attention_params.h"
#include "cuda/simt_attention.h"

namespace packattn::cuda::sm90 {

/// Packed query rows (query tokens x query heads of a key head) that an item holds.
constexpr int decode_rows = 16;
/// Query heads of an item.
constexpr int decode_heads(std::int64_t group) {
  return static_cast<int>(std::min<std::int64_t>(group, decode_rows));
}
/// A sequence of at most so many query tokens is decode's, whatever else is in its batch: who
/// computes a row, and so its bits, is decided by its own sequence.
constexpr std::int32_t decode_tokens(std::int64_t group) {
  return decode_rows / decode_heads(group);
}

/// Splits of a sequence's keys, counted from key 0: at most 64, of a multiple of 256 keys. A
/// function of the sequence's own length, and part of its bits.
constexpr std::int32_t decode_split_keys = 256;
constexpr std::int32_t decode_most_splits = 64;
constexpr std::int32_t decode_split(std::int32_t keys) {
  constexpr std::int32_t most = decode_split_keys * decode_most_splits;
  return decode_split_keys * std::max(1, (keys + most - 1) / most);
}

/// Scratch for partial results: all splits of a tile are spread over blocks if it has room for
/// them.
struct DecodeLaunch {
  CUtensorMap k, v;
  std::int32_t part_keys;   ///< keys that one copy brings: a tile, or what a page has of it
  std::int32_t head_chunk;  ///< query heads of an item
  std::int32_t head_slots;  ///< key heads x chunks of their groups
  std::int32_t row_bound;   ///< packed rows that an item has at most
  std::int32_t capacity;    ///< splits that the scratch memory has room for
  std::int32_t blocks, combine_blocks;
  bool combines;  ///< whether any tile may have more than one split
  Bucket bucket;
  float* scratch;       ///< [capacity, head_slots, row_bound, value + 2]
  float* totals;        ///< [warps, row_bound, value + 2]: of tiles that are not spread
  std::int32_t* slots;  ///< [tiles]: the first of a tile's splits in scratch, -1 if not spread
};

/// Floats of one split of one head slot in scratch.
constexpr std::int64_t decode_floats(std::int64_t row_bound, std::int64_t value) {
  return row_bound * (value + 2);
}

/// Warps of a block, of which a multiprocessor holds one.
constexpr int decode_warps(Bucket bucket) {
  return bucket == Bucket::d64 ? 12 : bucket == Bucket::d128 ? 11 : 8;
}
constexpr int decode_value(Bucket bucket) { return bucket == Bucket::d64 ? 64 : 128; }
constexpr std::int32_t decode_keys = 16;  ///< of a tile

void launch_attention_decode(const AttentionParams& p, const DecodeLaunch& how, DType dtype,
                             cudaStream_t stream);

/// What of a call is decode's.
struct DecodePlan {
  bool any = false;    ///< some sequence may be
  bool others = true;  ///< some sequence may not be
  DecodeLaunch how{};
  std::size_t scratch_floats = 0, total_floats = 0, tiles = 0;
  std::size_t workspace_bytes() const;
};
/// The smallest bucket that takes the problem; none takes 256, whose accumulators do not fit the
/// registers of a warp.
std::optional<Bucket> decode_bucket(const AttentionProblem& p);
DecodePlan plan_decode(const AttentionCall& call, Bucket bucket, std::int64_t tile_bound);
/// Launches the kernels.
void run_decode(const DecodePlan& plan, const AttentionCall& call, AttentionRun& now);

}  // namespace packattn::cuda::sm90
