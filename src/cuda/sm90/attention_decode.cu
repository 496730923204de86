// SPDX-License-Identifier: Apache-2.0
// sm90/attention_decode: few query tokens a sequence against many keys, for fp16 and bf16.
//
// What counts is reading every key and value once, at the speed of memory. An item is a sequence, a
// key head with the query heads of its group (16 packed rows at most), and a split of the keys. A
// warp has items of its own and shares nothing but the list of them: no barrier among warps, and a
// ring of key tiles, filled by the copy engine, that runs on into its next item while it ends the
// one before.
//
//   warp:  start K(t+s) V(t+s) | S = Q K(t)^T -> x -> m, p, l -> O += P V(t)     16 keys a tile
//
// A row's splits are folded in order, by a second kernel over partial results in scratch, or, for
// tiles that scratch has no room for, by the warp that walks through them all.
//
// Bits: the size of a split depends on the sequence's length alone, and both ways of folding are
// the same operations in the same order.
#include <cuda_runtime.h>

#include "cuda/sm90/decode_work.cuh"

namespace packattn::cuda::sm90 {
namespace {

using namespace decode;

/// Fills a warp's ring, item after item, ahead of what is computed. Lane i starts the i-th copy of
/// a tile: where pages are no multiple of it there are several.
template <class C>
class Loader {
 public:
  __device__ Loader(const AttentionParams& p, const DecodeLaunch& launch, DecodeStorage<C>& shared,
                    std::int64_t first)
      : p_(p),
        launch_(launch),
        shared_(shared),
        ring_(shared.rings[warp_index()]),
        progress_(shared.progress[warp_index()]),
        next_(first) {
    open();
  }

  /// Starts the next tile's copies, if there is one.
  __device__ void issue(int stage) {
    if (next_ >= shared_.items) return;
    if (lane_index() == 0) ptx::barrier_arrive_expect(progress_.there[stage], C::tile_bytes);
    __syncwarp();
    const int offset = lane_index() * launch_.part_keys;
    if (offset < C::keys) {
      const std::int32_t head = progress_.ahead.item.head_k;
      copy<C::head>(ring_.k[stage] + offset * 64, launch_.k, progress_.there[stage], head);
      copy<C::value>(ring_.v[stage] + offset * 64, launch_.v, progress_.there[stage], head);
    }
    key_ += C::keys;
    if (key_ < progress_.ahead.end) {
      look_up();
    } else {
      next_ += shared_.step;
      open();
    }
  }

 private:
  template <int width>
  __device__ void copy(typename C::T* to, const CUtensorMap& map, std::uint64_t& there,
                       std::int32_t head) const {
#pragma unroll
    for (int part = 0; part < width / 64; ++part) {
      ptx::copy_box(to + part * C::keys * 64, map, there, part * 64, head, row_, page_);
    }
  }
  /// The next item that has keys.
  __device__ void open() {
    for (; next_ < shared_.items; next_ += shared_.step) {
      __syncwarp();  // no lane needs the work before
      if (lane_index() == 0) progress_.ahead = work_of(p_, launch_, shared_, next_);
      __syncwarp();
      key_ = progress_.ahead.begin;
      if (key_ < progress_.ahead.end) break;
    }
    if (next_ < shared_.items) look_up();
  }
  /// Finds the next tile's rows before they are needed. Nothing of a part past the last key is
  /// used, so that any page will do for it.
  __device__ void look_up() {
    const Item& item = progress_.ahead.item;
    const std::int32_t key = key_ + lane_index() * launch_.part_keys;
    if (p_.batch.block_table == nullptr) {
      row_ = static_cast<std::int32_t>(item.sequence.k_start) + key;
      page_ = 0;
      return;
    }
    const std::int32_t entry = key / p_.page_size;
    row_ = key - entry * p_.page_size;
    page_ = key < progress_.ahead.end ? p_.batch.block_table[item.n * p_.batch.table_stride + entry]
                                      : 0;
  }

  const AttentionParams& p_;
  const DecodeLaunch& launch_;
  const DecodeStorage<C>& shared_;
  Ring<C>& ring_;
  Progress<C>& progress_;
  std::int64_t next_;
  std::int32_t key_ = 0, row_ = 0, page_ = 0;
};

/// Rows from `first` on hold what is not the sequence's; a weight of 0 would not hide a NaN there.
template <class C>
__device__ void clear_values(typename C::T* v, int first) {
  for (int i = first * (C::value / 8) + lane_index(); i < C::keys * (C::value / 8); i += 32) {
    auto* at = __cvta_shared_to_generic(boxed<C::keys>(v, i / (C::value / 8), i % (C::value / 8)));
    *static_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
  }
  ptx::shared_proxy_fence();  // the copy engine writes here next
  __syncwarp();
}

/// Queries past the loader's ring: a few rows an item.
template <class C>
__device__ void load_queries(const AttentionParams& p, const Item& item, typename C::T* to) {
  using T = typename C::T;
  constexpr int chunks = C::head / 8;
#pragma unroll 4
  for (int i = lane_index(); i < decode_rows * chunks; i += 32) {
    const int row = i / chunks;
    const int chunk = i % chunks;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (row < item.rows && chunk * 8 < p.head_dim) {
      const Target at(p, item, row);
      const auto* from = static_cast<const T*>(p.q.data) + at.token * p.q.row_stride +
                         at.head * p.q.head_stride + chunk * 8;
      value = *reinterpret_cast<const uint4*>(from);
    }
    *reinterpret_cast<uint4*>(__cvta_shared_to_generic(swizzled<C::head>(to, row, chunk))) = value;
  }
  __syncwarp();
}

/// A split's result in scratch.
__device__ Partial partial_at(float* scratch, std::int64_t index, int row_bound, int value) {
  float* at = scratch + index * decode_floats(row_bound, value);
  return {at, at + 2 * row_bound};
}

/// One item: its tiles from the ring, then its result. `turn` counts the ring's tiles.
template <class C>
__device__ void run_work(const AttentionParams& p, const DecodeLaunch& launch,
                         DecodeStorage<C>& shared, Loader<C>& loader, int& turn) {
  Ring<C>& ring = shared.rings[warp_index()];
  Progress<C>& progress = shared.progress[warp_index()];
  const Work& work = progress.work;
  const Item& item = work.item;
  const auto total = [&] {
    return partial_at(launch.totals,
                      static_cast<std::int64_t>(blockIdx.x) * C::warps + warp_index(),
                      launch.row_bound, C::value);
  };
  const auto result = [&] {
    return partial_at(launch.scratch, work.slot, launch.row_bound, C::value);
  };
  load_queries<C>(p, item, ring.q);
  RowState rows = row_state(p, item, 0);
  Accumulator<C> o;
  reset<C>(rows, o);
  bool folded = false;
  for (std::int32_t key = work.begin;;) {
    const std::int32_t end = min(work.end, (key / work.split + 1) * work.split);
    for (; key < end; key += C::keys) {
      const int stage = turn % C::stages;
      ptx::barrier_wait(progress.there[stage], turn / C::stages % 2);
      if (key + C::keys > work.end) clear_values<C>(ring.v[stage], work.end - key);
      Scores<C> s;
      scores<C>(ring.q, ring.k[stage], s);
      softmax_step<C>(p, item, key, rows, s, o);
      accumulate<C>(ring.v[stage], s, o);
      __syncwarp();  // the stage is free
      loader.issue(stage);
      ++turn;
    }
    if (p.plain) {  // from here on a maximum is a score
      rows.m[0] *= p.scale;
      rows.m[1] *= p.scale;
    }
    if (folded) fold_stored<C>(item, total(), 0, rows, o);
    const bool last = key >= work.end;
    if (last && work.slot < 0) {
      store_output<C>(p, item, 0, rows, o);
      break;
    }
    store_partial<C>(item, last ? result() : total(), 0, rows, o);
    if (last) break;
    reset<C>(rows, o);
    folded = true;
  }
  __syncwarp();  // the queries are done with
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    decode_kernel(const __grid_constant__ AttentionParams p,
                  const __grid_constant__ DecodeLaunch launch) {
  extern __shared__ __align__(1024) std::byte bytes[];
  auto& shared = *reinterpret_cast<DecodeStorage<C>*>(bytes);
  clear_gaps<typename C::T>(p);
  Progress<C>& progress = shared.progress[warp_index()];
  if (lane_index() == 0) {
    for (std::uint64_t& barrier : progress.there) ptx::barrier_init(barrier, 1);
    ptx::barrier_init_fence();
  }
  __syncwarp();
  int turn = 0;
  const std::int32_t tiles = *p.batch.tile_count;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * C::warps;
  std::int64_t slots_used = 0;
  // Neighbouring items go to different multiprocessors.
  std::int64_t next = static_cast<std::int64_t>(warp_index()) * gridDim.x + blockIdx.x;
  for (std::int32_t base = 0; base < tiles; base += chunk_tiles) {
    const std::int32_t units = lay_out<C>(p, launch, base, tiles, slots_used, shared);
    const std::int64_t items = static_cast<std::int64_t>(units) * launch.head_slots;
    if (thread_index() == 0) {
      shared.base = base;
      shared.items = items;
      shared.step = step;
    }
    __syncthreads();
    Loader<C> loader(p, launch, shared, next);
    for (int s = 0; s < C::stages; ++s) loader.issue((turn + s) % C::stages);
    for (; next < items; next += step) {
      if (lane_index() == 0) progress.work = work_of(p, launch, shared, next);
      __syncwarp();
      run_work<C>(p, launch, shared, loader, turn);
    }
    next -= items;
    __syncthreads();  // the list of items is done with
  }
}

/// A row of a spread tile: its splits, folded in order. A block a row, a thread a column or two.
template <class T, int value>
__global__ void __launch_bounds__(value)
    decode_combine_kernel(const __grid_constant__ AttentionParams p,
                          const __grid_constant__ DecodeLaunch launch) {
  constexpr int ahead = 16;
  const std::int64_t of_tile = static_cast<std::int64_t>(launch.head_slots) * launch.row_bound;
  const std::int64_t all = *p.batch.tile_count * of_tile;
  for (std::int64_t i = blockIdx.x; i < all; i += gridDim.x) {
    const auto tile = static_cast<std::int32_t>(i / of_tile);
    const auto head_slot = static_cast<std::int32_t>(i % of_tile / launch.row_bound);
    const auto row = static_cast<int>(i % launch.row_bound);
    const std::int32_t slot = launch.slots[tile];
    if (slot < 0) continue;
    const Item item = decode_item(p, launch, tile, head_slot);
    if (row >= item.rows) continue;
    const std::int32_t count = Splits(item).count();
    const std::int64_t stride = launch.head_slots * decode_floats(launch.row_bound, value);
    const Partial from =
        partial_at(launch.scratch, static_cast<std::int64_t>(slot) * launch.head_slots + head_slot,
                   launch.row_bound, value);
    const int column = thread_index();
    float m = -INFINITY;
    float l = 0;
    float o = 0;
    for (std::int32_t g = 0; g < count; g += ahead) {
      float acc[ahead];
      float2 sums[ahead];
#pragma unroll
      for (int j = 0; j < ahead; ++j) {  // all under way before the first is folded
        const std::int64_t at = min(g + j, count - 1) * stride;
        acc[j] = from.acc[at + row * value + column];
        sums[j] = *reinterpret_cast<const float2*>(from.sums + at + 2 * row);
      }
#pragma unroll
      for (int j = 0; j < ahead; ++j) {
        if (g + j >= count) break;
        const Fold fold(m, l, sums[j].x, sums[j].y);
        m = fold.m;
        l = fold.l;
        o = fold(o, acc[j]);
      }
    }
    const Target to(p, item, row);
    float weight;
    const Finish finish(p, to.head, m, l, weight);
    if (column < p.value_dim) {
      store_one<T>(p, to.token * p.out.row_stride + to.head * p.out.head_stride + column,
                   o * __fmul_rn(weight, finish.inverse));
    }
    if (p.lse != nullptr && column == 0) p.lse[to.head * p.lse_stride + to.token] = finish.lse;
  }
}

template <class C>
void launch_config(const AttentionParams& p, const DecodeLaunch& how, cudaStream_t stream) {
  static_assert(sizeof(DecodeStorage<C>) <= 227 * 1024);
  launch("attention_decode", decode_kernel<C>, how.blocks, C::threads, sizeof(DecodeStorage<C>),
         stream, p, how);
  if (!how.combines) return;
  launch("attention_decode", decode_combine_kernel<typename C::T, C::value>, how.combine_blocks,
         C::value, 0, stream, p, how);
}

template <class T>
void launch_dtype(const AttentionParams& p, const DecodeLaunch& how, cudaStream_t stream) {
  constexpr auto d64 = Bucket::d64, d128 = Bucket::d128, d192 = Bucket::d192_128;
  //                                                           D   Dv stages
  switch (how.bucket) {
    case d64: return launch_config<DecodeConfig<T, d64, 64, 64, 3>>(p, how, stream);
    case d128: return launch_config<DecodeConfig<T, d128, 128, 128, 2>>(p, how, stream);
    default: return launch_config<DecodeConfig<T, d192, 192, 128, 2>>(p, how, stream);
  }
}

}  // namespace

void launch_attention_decode(const AttentionParams& p, const DecodeLaunch& how, DType dtype,
                             cudaStream_t stream) {
  dtype == DType::f16 ? launch_dtype<__half>(p, how, stream)
                      : launch_dtype<__nv_bfloat16>(p, how, stream);
}

}  // namespace packattn::cuda::sm90
