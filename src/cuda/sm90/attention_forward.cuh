// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/forward_rows.cuh"

// sm90/attention_forward: softmax attention for fp16 and bf16 on Hopper, every option.
//
//   S = Q K^T    x = scale, softcap, ALiBi, mask of S    m' = max(m, max x)
//   P = exp(x - m')    l = e^(m - m') l + sum P    O = e^(m - m') O + P V    out = O / l
//
// An item is 128 packed rows: the query heads of a key head beside each other, token after token.
// Blocks stay, one a multiprocessor, and take items by a counter, the heaviest sequences first.
//
//   warp 0       fetches K(t+2), and Q of the next item, by the copy engine
//   warp 1       fetches V(t+3)
//   warp 2       looks up items, four ahead
//   groups 1, 2  64 rows each, in turns: while one's products run, the other makes weights
//
//   group 1   S(t+1) O+=P(t)V │ softmax(t+1)          │ S(t+2) O+=P(t+1)V │ ...
//   group 2   softmax(t)      │ S(t+1) O+=P(t)V       │ softmax(t+1)      │ ...
//
// Tiles run from the last that any row sees down to the first, and one item follows the other in
// the same stream: the first scores of the next are made beside the last O += P V of this one.
//
// Bits: key tiles start at key 0 and have one width for a pair of head sizes. A tile that a row
// does not see leaves m, l and O as they are, so that where a row lies in its item, and which
// rows lie beside it, changes nothing.

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

/// S = Q K^T, started.
template <class C>
__device__ void start_scores(const ForwardStorage<C>& shared, int slot, int stage, int group,
                             Pieces<C::keys>& s) {
  static_assert(Pieces<C::keys>::count == 1);
  const std::uint64_t q =
      ptx::wgmma_uniform(ptx::wgmma_operand(shared.q[slot] + group * 64 * 64, 1024, 0));
  const std::uint64_t k = ptx::wgmma_uniform(ptx::wgmma_operand(shared.k[stage], 1024, 0));
#pragma unroll
  for (int kk = 0; kk < C::head / 16; ++kk) {
    const int column = kk % 4 * 32;
    ptx::wgmma<typename C::T, ptx::Major::depth>(
        s.at[0], ptx::wgmma_operand_at(q, kk / 4 * C::rows * 128 + column),
        ptx::wgmma_operand_at(k, kk / 4 * C::keys * 128 + column), kk > 0);
  }
}

/// O += P V, started.
template <class C>
__device__ void start_output(const ForwardStorage<C>& shared, int stage, const Weights<C>& p,
                             Pieces<C::value>& o) {
  constexpr int piece = Pieces<C::value>::piece;
  const std::uint64_t v =
      ptx::wgmma_uniform(ptx::wgmma_operand(shared.v[stage], 1024, C::keys * 128));
#pragma unroll
  for (int kk = 0; kk < C::keys / 16; ++kk) {
#pragma unroll
    for (int n = 0; n < C::value / piece; ++n) {
      const int at = (n * piece / 64 * C::keys + kk * 16) * 128;
      ptx::wgmma<typename C::T, ptx::Major::width>(o.at[n], p[kk], ptx::wgmma_operand_at(v, at),
                                                   true);
    }
  }
}

/// Rows of V past the sequence's end are somebody else's and may be NaN, which a weight of 0
/// would not silence. Only an item's first tile can have some.
template <class C>
__device__ void clear_ragged(const ForwardItem& item, int group, ForwardStorage<C>& shared,
                             Stage<C::value_stages> at) {
  const std::int32_t valid = item.k_length - (item.tile_end - 1) * C::keys;
  if (valid >= C::keys) return;
  ptx::barrier_wait(shared.v_full[at.index], at.phase);
  const int thread = static_cast<int>(threadIdx.x) % warpgroup;
  for (int b = 0; b < C::value / 64; ++b) {
    auto* rows = reinterpret_cast<uint4*>(shared.v[at.index] + b * C::keys * 64);
    for (int i = valid * 8 + thread; i < C::keys * 8; i += warpgroup) rows[i] = uint4{0, 0, 0, 0};
  }
  ptx::shared_proxy_fence();
  ptx::named_barrier_sync(group_0 + group, warpgroup);
}

/// The role of a warpgroup: one stream of key tiles, in which an item follows the other without a
/// pause. While O += P V of a tile runs, the scores of the tile after it become weights, be it the
/// next item's.
template <class C>
__device__ void consume(const AttentionParams& p, const ForwardLaunch& launch,
                        ForwardStorage<C>& shared, int group) {
  if (group == 1) ptx::named_barrier_arrive(turn_0, 2 * warpgroup);
  unsigned number = 0;
  const ForwardItem* item = &await_item(shared, number);
  if (item->rows == 0) return;
  const float factor = C::general ? log2e : p.scale * log2e;
  // What every tile asks for stays in registers: a read of shared memory is 30 cycles of waiting.
  RowState rows = row_state<C>(p, launch, *item, group);
  std::int32_t tile = item->tile_end - 1;
  std::int32_t left = tile - item->tile_begin;  // tiles of the item after this one
  Pieces<C::value> o;
  Pieces<C::keys> s;
  Weights<C> weights;
  float rescale[2];
  o.clear();
  ptx::barrier_wait(shared.q_full[0], 0);
  ptx::barrier_wait(shared.k_full[0], 0);
  s.pin();
  ptx::wgmma_fence();
  start_scores<C>(shared, 0, 0, group, s);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  s.pin();
  release(shared.k_empty[0]);
  if (left == 0) release(shared.q_empty[0]);
  finish_scores<C>(p, tile, rows, s);
  softmax_step<C>(factor, rows, s, rescale);
  round_weights<C>(s, weights);
  clear_ragged<C>(*item, group, shared, Stage<C::value_stages>(0));
  unsigned tiles = 0;  // whose weights are made
  for (;; ++tiles) {
    const Stage<C::value_stages> v(tiles);
    const Stage<C::key_stages> k(tiles + 1);
    const bool last = left == 0;
    const ForwardItem* following = item;
    --tile;
    --left;
    if (last) {
      following = &await_item(shared, ++number);
      if (following->rows == 0) break;
      tile = following->tile_end - 1;
      left = tile - following->tile_begin;
    }
    const Stage<C::queries> q(number);
    if (last) ptx::barrier_wait(shared.q_full[q.index], q.phase);
    ptx::barrier_wait(shared.k_full[k.index], k.phase);
    ptx::named_barrier_sync(turn_0 + group, 2 * warpgroup);
    s.pin();
    o.pin();
    ptx::wgmma_fence();
    start_scores<C>(shared, q.index, k.index, group, s);
    ptx::wgmma_commit();
    ptx::barrier_wait(shared.v_full[v.index], v.phase);
    ptx::wgmma_fence();
    start_output<C>(shared, v.index, weights, o);
    ptx::wgmma_commit();
    ptx::named_barrier_arrive(turn_0 + (1 - group), 2 * warpgroup);
    ptx::wgmma_wait<1>();
    s.pin();
    release(shared.k_empty[k.index]);
    if (left == 0) release(shared.q_empty[q.index]);
    const RowSums done = rows;
    if (last) rows = row_state<C>(p, launch, *following, group);
    finish_scores<C>(p, tile, rows, s);
    softmax_step<C>(factor, rows, s, rescale);
    s.pin();
    // The wait is in both branches: before them, the assembler moves it above the softmax.
    if (last) {
      ptx::wgmma_wait<0>();
      o.pin();
      release(shared.v_empty[v.index]);
      store_half<C, 0>(p, launch, *item, group, done, o);
      store_half<C, 1>(p, launch, *item, group, done, o);
      release(shared.item_empty[(number - 1) % C::item_slots]);
      o.clear();
      item = following;
      clear_ragged<C>(*item, group, shared, Stage<C::value_stages>(tiles + 1));
    } else {
      ptx::wgmma_wait<0>();
      o.pin();
      release(shared.v_empty[v.index]);
      rescale_output<C>(rescale, o);
    }
    round_weights<C>(s, weights);
  }
  const Stage<C::value_stages> v(tiles);
  ptx::barrier_wait(shared.v_full[v.index], v.phase);
  o.pin();
  ptx::wgmma_fence();
  start_output<C>(shared, v.index, weights, o);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  o.pin();
  store_half<C, 0>(p, launch, *item, group, rows, o);
  store_half<C, 1>(p, launch, *item, group, rows, o);
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    attention_forward_kernel(const __grid_constant__ AttentionParams p,
                             const __grid_constant__ ForwardLaunch launch) {
  extern __shared__ __align__(1024) std::byte bytes[];
  auto& shared = *reinterpret_cast<ForwardStorage<C>*>(bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::item_slots; ++i) {
      ptx::barrier_init(shared.item_full[i], 1);
      ptx::barrier_init(shared.item_empty[i], 4 * C::groups + 2);
    }
    for (int i = 0; i < C::queries; ++i) {
      ptx::barrier_init(shared.q_full[i], 1);
      ptx::barrier_init(shared.q_empty[i], 4 * C::groups);
    }
    for (int i = 0; i < C::key_stages; ++i) {
      ptx::barrier_init(shared.k_full[i], 1);
      ptx::barrier_init(shared.k_empty[i], 4 * C::groups);
    }
    for (int i = 0; i < C::value_stages; ++i) {
      ptx::barrier_init(shared.v_full[i], 1);
      ptx::barrier_init(shared.v_empty[i], 4 * C::groups);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  const int role = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / warpgroup, 0);
  if (role == 0) {
    ptx::registers_decrease<56>();
    const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) fetch_keys<C>(p, launch, shared);
    else if (warp == 1) fetch_values<C>(p, launch, shared);
    else if (warp == 2) schedule<C>(p, launch, shared);
    else clear_gaps(p);
  } else {
    ptx::registers_increase<224>();
    consume<C>(p, launch, shared, role - 1);
  }
}

template <class C>
void launch_config(const AttentionParams& p, const ForwardLaunch& launch, cudaStream_t stream) {
  constexpr auto bytes = static_cast<int>(sizeof(ForwardStorage<C>));
  static_assert(bytes <= shared_limit);
  check(cudaFuncSetAttribute(attention_forward_kernel<C>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
  attention_forward_kernel<C><<<launch.blocks, C::threads, bytes, stream>>>(p, launch);
  check(cudaGetLastError(), "sm90/attention_forward");
}

template <class T, bool general>
void launch_bucket(const AttentionParams& p, const ForwardLaunch& launch, ForwardBucket bucket,
                   cudaStream_t stream) {
  constexpr auto keys = forward_keys;
  switch (bucket) {
    using enum ForwardBucket;
    case d64: return launch_config<ForwardConfig<T, 64, 64, keys(d64), general>>(p, launch, stream);
    case d128:
      return launch_config<ForwardConfig<T, 128, 128, keys(d128), general>>(p, launch, stream);
    case d192_128:
      return launch_config<ForwardConfig<T, 192, 128, keys(d192_128), general>>(p, launch, stream);
    case d192:
      return launch_config<ForwardConfig<T, 192, 192, keys(d192), general>>(p, launch, stream);
    case d256:
      return launch_config<ForwardConfig<T, 256, 256, keys(d256), general>>(p, launch, stream);
  }
}

template <class T>
void launch_forward(const AttentionParams& p, const ForwardLaunch& launch, ForwardBucket bucket,
                    cudaStream_t stream) {
  p.plain ? launch_bucket<T, false>(p, launch, bucket, stream)
          : launch_bucket<T, true>(p, launch, bucket, stream);
}

}  // namespace packattn::cuda::sm90
