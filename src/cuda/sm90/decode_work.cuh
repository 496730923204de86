// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/attention_rows.cuh"
#include "cuda/device.cuh"
#include "cuda/sm90/attention_decode.h"
#include "cuda/sm90/ptx.cuh"

// attention_decode: its shared memory, and the list of a block's items.

namespace packattn::cuda::sm90::decode {

constexpr int chunk_tiles = 256;  ///< tiles whose items a block lays out at a time

template <class Element, Bucket b, int d, int dv, int stage_count>
struct DecodeConfig {
  using T = Element;
  static constexpr int head = d;
  static constexpr int value = dv;
  static constexpr int keys = decode_keys;
  static constexpr int stages = stage_count;
  static constexpr int warps = decode_warps(b);
  static constexpr int threads = 32 * warps;
  static constexpr int tile_bytes = keys * (head + value) * 2;
  static constexpr bool boxes = true;
  static_assert(decode_value(b) == value);
};

/// What a warp does at a time: an item's keys [begin, end), a split of them or all.
struct Work {
  Item item;
  std::int32_t begin, end;
  std::int32_t split;  ///< keys after which a result is folded
  std::int64_t slot;   ///< of its result in scratch, or -1 if it is the only one
};

/// A warp's own.
template <class C>
struct Ring {
  alignas(1024) typename C::T k[C::stages][C::keys * C::head];
  alignas(1024) typename C::T v[C::stages][C::keys * C::value];
  alignas(1024) typename C::T q[decode_rows * C::head];
};
template <class C>
struct Progress {
  std::uint64_t there[C::stages];  ///< a tile has been copied
  Work work;                       ///< what is computed
  Work ahead;                      ///< what is loaded
};

template <class C>
struct DecodeStorage {
  Ring<C> rings[C::warps];
  Progress<C> progress[C::warps];
  std::int32_t first[chunk_tiles + 1];  ///< items of the tiles before, without head slots
  std::int32_t slot[chunk_tiles];       ///< of a tile's first split in scratch, or -1
  std::int32_t warp_total[C::warps];
  std::int32_t base;         ///< the chunk's first tile
  std::int64_t items, step;  ///< of the chunk; from one item of a warp to its next
};

/// The splits that a tile sees.
struct Splits {
  std::int32_t size, begin, end;
  __device__ explicit Splits(const Item& item)
      : size(decode_split(item.sequence.k_length)),
        begin(item.key_begin / size),
        end(item.key_end > item.key_begin ? (item.key_end + size - 1) / size : begin) {}
  __device__ std::int32_t count() const { return end - begin; }
};

__device__ inline Item decode_item(const AttentionParams& p, const DecodeLaunch& launch,
                                   std::int32_t tile, std::int32_t head_slot) {
  return make_item(p, tile, head_slot, decode_rows, launch.head_chunk);
}

/// Exclusive prefix sum over the block; `total` is the sum.
template <int warps>
__device__ std::int32_t prefix_sum(std::int32_t (&warp_total)[warps], std::int32_t value,
                                   std::int32_t& total) {
  std::int32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t other = __shfl_up_sync(all_lanes, sum, step);
    if (lane_index() >= step) sum += other;
  }
  __syncthreads();  // whoever read the totals before has done so
  if (lane_index() == 31) warp_total[warp_index()] = sum;
  __syncthreads();
  std::int32_t before = sum - value;
  total = 0;
  for (int w = 0; w < warps; ++w) {
    if (w < warp_index()) before += warp_total[w];
    total += warp_total[w];
  }
  return before;
}

/// Items of tiles [base, base + chunk_tiles), and which of them are spread over scratch. Returns
/// how many items there are; `slots_used` moves on. The same in every block; a barrier has to
/// follow.
template <class C>
__device__ std::int32_t lay_out(const AttentionParams& p, const DecodeLaunch& launch,
                                std::int32_t base, std::int32_t tiles, std::int64_t& slots_used,
                                DecodeStorage<C>& shared) {
  std::int32_t items = 0;
  for (int part = 0; part < chunk_tiles; part += C::threads) {
    const int i = part + thread_index();
    const std::int32_t tile = base + i;
    std::int32_t splits = -1;  // not decode's
    if (tile < tiles &&
        p.batch.sequences[p.batch.tiles[tile].sequence].q_length <= decode_tokens(p.group)) {
      splits = Splits(decode_item(p, launch, tile, 0)).count();
    }
    std::int32_t total;
    const std::int32_t wanted = splits > 1 ? splits : 0;
    const std::int64_t slot = slots_used + prefix_sum(shared.warp_total, wanted, total);
    slots_used += total;
    const bool spread = splits > 1 && slot + splits <= launch.capacity;
    const std::int32_t own = splits < 0 ? 0 : (spread ? splits : 1);
    const std::int32_t before = prefix_sum(shared.warp_total, own, total);
    if (i < chunk_tiles) {
      shared.first[i] = items + before;
      shared.slot[i] = spread ? static_cast<std::int32_t>(slot) : -1;
      if (blockIdx.x == 0 && tile < tiles) launch.slots[tile] = shared.slot[i];
    }
    items += total;
  }
  if (thread_index() == 0) shared.first[chunk_tiles] = items;
  return items;
}

/// Item `i` of the chunk that was laid out, head slots side by side.
template <class C>
__device__ Work work_of(const AttentionParams& p, const DecodeLaunch& launch,
                        const DecodeStorage<C>& shared, std::int64_t i) {
  const auto unit = static_cast<std::int32_t>(i / launch.head_slots);
  const auto head_slot = static_cast<std::int32_t>(i % launch.head_slots);
  int low = 0;
  for (int high = chunk_tiles; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (shared.first[middle] <= unit) low = middle;
    else high = middle;
  }
  Work work{decode_item(p, launch, shared.base + low, head_slot), 0, 0, 0, -1};
  const Splits splits(work.item);
  work.split = splits.size;
  work.begin = work.item.key_begin;
  work.end = work.item.key_end;
  if (shared.slot[low] >= 0) {
    const std::int32_t part = unit - shared.first[low];
    const std::int32_t g = splits.begin + part;
    work.begin = max(work.begin, g * splits.size);
    work.end = min(work.end, (g + 1) * splits.size);
    work.slot = static_cast<std::int64_t>(shared.slot[low] + part) * launch.head_slots + head_slot;
  }
  work.begin = work.begin / C::keys * C::keys;  // tiles are counted from key 0
  return work;
}

}  // namespace packattn::cuda::sm90::decode
