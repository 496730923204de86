// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/forward_rows.cuh"

// attention_forward: its shapes and shared memory, and the warps that look up items and fetch
// tiles.

namespace packattn::cuda::sm90 {

/// Shared memory of a block on the cards of compute capability 9.0.
constexpr int shared_limit = 227 * 1024;

enum NamedBarrier { turn_0 = 1, turn_1, group_0, group_1 };

/// `general`: scores are scaled, capped and biased one by one before they are compared.
template <class T_, int head_, int value_, int keys_, bool general_>
struct ForwardConfig {
  using T = T_;
  static constexpr int head = head_, value = value_;
  static constexpr int keys = keys_;  ///< of a tile; part of the implementation's bits
  static_assert(keys == 64 || keys == 128);
  static constexpr bool general = general_;
  static constexpr int groups = 2;
  static constexpr int rows = 64 * groups;
  static constexpr int threads = warpgroup * (groups + 1);
  static constexpr int query_bytes = 2 * rows * head;
  static constexpr int key_bytes = 2 * keys * head;
  static constexpr int value_bytes = 2 * keys * value;
  static constexpr int barrier_bytes = 1024;  ///< and items
  static constexpr int key_stages = 2;
  /// What is left goes first to the next item's queries, then to a third tile of values, which are
  /// given back later than keys are.
  static constexpr int spare =
      shared_limit - barrier_bytes - query_bytes - key_stages * key_bytes - 2 * value_bytes;
  static_assert(spare >= 0);
  static constexpr int queries = spare >= query_bytes ? 2 : 1;
  static constexpr int value_stages = spare - (queries - 1) * query_bytes >= value_bytes ? 3 : 2;
  static constexpr int item_slots = 4;  ///< items looked up before they are begun
};

template <class C>
struct ForwardStorage {
  using T = typename C::T;
  alignas(1024) T q[C::queries][C::rows * C::head];
  alignas(1024) T k[C::key_stages][C::keys * C::head];
  alignas(1024) T v[C::value_stages][C::keys * C::value];
  ForwardItem items[C::item_slots];
  std::uint64_t item_full[C::item_slots], item_empty[C::item_slots];
  std::uint64_t q_full[C::queries], q_empty[C::queries];
  std::uint64_t k_full[C::key_stages], k_empty[C::key_stages];
  std::uint64_t v_full[C::value_stages], v_empty[C::value_stages];
};

/// Where the n-th tile lies, and the parity of its barriers: a register instead of two for each of
/// keys and values.
template <int stages>
struct Stage {
  int index, phase;
  __device__ explicit Stage(unsigned n)
      : index(static_cast<int>(n % stages)), phase(static_cast<int>(n / stages % 2)) {}
};

__device__ inline void release(std::uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::barrier_arrive(barrier);
}

/// A tile of keys or values in parts of what pages have of it, by the lanes of a warp. Parts past
/// the sequence's end stay as they are: the rows before it must be its own, seen or not, because a
/// weight of 0 does not silence another's NaN.
template <int width, int keys, class T>
__device__ void load_pages(const AttentionParams& p, const ForwardLaunch& launch,
                           const ForwardItem& item, const CUtensorMap& map, std::int32_t tile,
                           T* to, std::uint64_t& full) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t first = tile * keys;
  const std::int32_t copies =
      min(keys, item.k_length - first + launch.part_keys - 1) / launch.part_keys;
  if (lane == 0) ptx::barrier_arrive_expect(full, copies * launch.part_keys * width * 2);
  for (std::int32_t i = lane; i < copies; i += 32) {
    const std::int32_t key = first + i * launch.part_keys;
    const std::int32_t page =
        p.batch.block_table[item.n * p.batch.table_stride + key / p.page_size];
#pragma unroll
    for (int b = 0; b < width / 64; ++b) {
      ptx::copy_box(to + (b * keys + i * launch.part_keys) * 64, map, full, 64 * b, item.head_k,
                    key % p.page_size, page);
    }
  }
}

/// A tile of keys or values. This stands between a stage that becomes free and its next tile, so it
/// is short where rows are packed.
template <int width, int keys, class T>
__device__ void load_tile(const AttentionParams& p, const ForwardLaunch& launch,
                          const ForwardItem& item, const CUtensorMap& map, std::int32_t tile, T* to,
                          std::uint64_t& full) {
  if (p.batch.block_table != nullptr) {
    load_pages<width, keys>(p, launch, item, map, tile, to, full);
  } else if (ptx::elect()) {
    ptx::barrier_arrive_expect(full, keys * width * 2);
    const int row = static_cast<int>(item.k_start) + tile * keys;
#pragma unroll
    for (int b = 0; b < width / 64; ++b) {
      ptx::copy_box(to + b * keys * 64, map, full, 64 * b, item.head_k, row, 0);
    }
  }
  __syncwarp();
}

template <class C>
__device__ void load_queries(const ForwardLaunch& launch, const ForwardItem& item,
                             Stage<C::queries> at, ForwardStorage<C>& shared) {
  ptx::barrier_wait(shared.q_empty[at.index], at.phase ^ 1);
  if (!ptx::elect()) return;
  const int box = launch.tile_rows * launch.head_chunk * 64;
  ptx::barrier_arrive_expect(shared.q_full[at.index], C::head / 64 * box * 2);
#pragma unroll
  for (int b = 0; b < C::head / 64; ++b) {
    ptx::copy_box(shared.q[at.index] + b * C::rows * 64, launch.q, shared.q_full[at.index], 64 * b,
                  item.first_head, static_cast<int>(item.q_start) + item.first_row);
  }
}

/// The role of one warp: looks up items, a few ahead of those in work. What an item is takes three
/// reads of memory one after the other, about a microsecond.
template <class C>
__device__ void schedule(const AttentionParams& p, const ForwardLaunch& launch,
                         ForwardStorage<C>& shared) {
  const bool leader = threadIdx.x % 32 == 0;
  const std::int64_t items = static_cast<std::int64_t>(*p.batch.tile_count) * launch.head_slots;
  unsigned number = 0;
  const auto pass_on = [&](const ForwardItem& item) {
    const Stage<C::item_slots> at(number++);
    ptx::barrier_wait(shared.item_empty[at.index], at.phase ^ 1);
    if (!leader) return;
    shared.items[at.index] = item;
    ptx::barrier_arrive(shared.item_full[at.index]);
  };
  for (std::int64_t index = blockIdx.x; index < items;) {
    const int taken = leader ? atomicAdd(launch.next, 1) : 0;
    const ForwardItem item = make_item<C>(p, launch, index);
    const bool taken_by_decode =
        p.decode_tokens > 0 && p.batch.sequences[item.n].q_length <= p.decode_tokens;
    if (!taken_by_decode) {
      if (item.tile_begin == item.tile_end) store_nothing(p, launch, item);
      else pass_on(item);
    }
    index = gridDim.x + static_cast<std::int64_t>(__shfl_sync(0xffffffffU, taken, 0));
  }
  pass_on(ForwardItem{});
}

/// The item of this number; one without rows ends the work.
template <class C>
__device__ const ForwardItem& await_item(ForwardStorage<C>& shared, unsigned number) {
  const Stage<C::item_slots> at(number);
  ptx::barrier_wait(shared.item_full[at.index], at.phase);
  return shared.items[at.index];
}

/// The role of one warp: fetches keys, and each item's queries after the first keys of the item
/// before, so that nobody waits for them.
template <class C>
__device__ void fetch_keys(const AttentionParams& p, const ForwardLaunch& launch,
                           ForwardStorage<C>& shared) {
  unsigned tiles = 0;
  ForwardItem item = await_item(shared, 0);
  if (item.rows > 0) load_queries<C>(launch, item, Stage<C::queries>(0), shared);
  for (unsigned number = 0; item.rows > 0; ++number) {
    const std::int32_t early =
        C::queries == 1 ? item.tile_begin : max(item.tile_end - C::key_stages, item.tile_begin);
    for (std::int32_t tile = item.tile_end; tile-- > item.tile_begin;) {
      const Stage<C::key_stages> at(tiles++);
      ptx::barrier_wait(shared.k_empty[at.index], at.phase ^ 1);
      load_tile<C::head, C::keys>(p, launch, item, launch.k, tile, shared.k[at.index],
                                  shared.k_full[at.index]);
      if (tile != early) continue;
      const ForwardItem& following = await_item(shared, number + 1);
      if (following.rows > 0) {
        load_queries<C>(launch, following, Stage<C::queries>(number + 1), shared);
      }
    }
    release(shared.item_empty[number % C::item_slots]);
    item = await_item(shared, number + 1);
  }
}

/// The role of one warp: fetches values.
template <class C>
__device__ void fetch_values(const AttentionParams& p, const ForwardLaunch& launch,
                             ForwardStorage<C>& shared) {
  unsigned tiles = 0;
  for (unsigned number = 0;; ++number) {
    const ForwardItem item = await_item(shared, number);
    if (item.rows == 0) return;
    for (std::int32_t tile = item.tile_end; tile-- > item.tile_begin;) {
      const Stage<C::value_stages> at(tiles++);
      ptx::barrier_wait(shared.v_empty[at.index], at.phase ^ 1);
      load_tile<C::value, C::keys>(p, launch, item, launch.v, tile, shared.v[at.index],
                                   shared.v_full[at.index]);
    }
    release(shared.item_empty[number % C::item_slots]);
  }
}

}  // namespace packattn::cuda::sm90
