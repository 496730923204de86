// SPDX-License-Identifier: Apache-2.0
// simt/attention for fp16 and bf16: every option, any card from compute capability 8.0.
//
// One block owns 64 packed rows: the query heads of one key head beside each other,
// token after token, so that short sequences fill the tile and share its keys. Keys come
// in tiles through a cp.async pipeline; scores and outputs are mma.sync products with
// fp32 accumulators and an online softmax over the rows of a warp.
//
//   tile:   load K(t+2) V(t+2) | S = Q K(t)^T -> x -> m, p, l -> O += P V(t)
//
// Bits: keys are folded in segments of 1024 counted from key 0. A segment starts from m = -inf,
// l = 0, acc = 0, and its end is folded into the running (M, L, O) by the same four operations
// wherever that happens: in this kernel one after the other, or, when there are fewer tiles than
// multiprocessors, by the combine kernel over segments that different blocks computed. So the
// spread over blocks changes no bit, and a row's bits depend on its own keys alone.
#include <cuda_runtime.h>

#include "cuda/attention_rows.cuh"
#include "cuda/simt_loads.cuh"

namespace packattn::cuda {
namespace {

/// The first packed row of the thread's warp.
__device__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 * 16; }

/// The keys of one segment into (m, l, acc), all from scratch.
template <class C>
__device__ void run_segment(const AttentionParams& p, const Item& item, const Segment& keys,
                            Storage<C>& shared, RowState& rows, Accumulator<C>& o) {
  reset<C>(rows, o);
  // Tiles are counted from key 0, so that a window's start does not shift them.
  const std::int32_t first = keys.begin / C::keys * C::keys;
  const std::int32_t ahead = (C::stages - 1) * C::keys;
  for (int i = 0; i < C::stages - 1; ++i) {
    load_tile(p, item, first + i * C::keys, i, keys.end, shared);
  }
  int stage = 0;
  for (std::int32_t key = first; key < keys.end; key += C::keys) {
    ptx::copy_async_wait<C::stages - 2>();
    __syncthreads();  // this tile is there, and the stage before it is free
    load_tile(p, item, key + ahead, (stage + C::stages - 1) % C::stages, keys.end, shared);
    Scores<C> s;
    scores<C>(shared.q + warp_row() * C::head, shared.k[stage], s);
    softmax_step<C>(p, item, key, rows, s, o);
    accumulate<C>(shared.v[stage], s, o);
    stage = (stage + 1) % C::stages;
  }
  __syncthreads();  // the stages are free for the next segment
  if (p.plain) {    // from here on a maximum is a score
    rows.m[0] *= p.scale;
    rows.m[1] *= p.scale;
  }
}

/// All segments of one item, folded in order.
template <class C>
__device__ void run_item(const AttentionParams& p, const Item& item, float* scratch,
                         Storage<C>& shared) {
  load_q<C>(p, item, shared.q);
  RowState rows = row_state(p, item, warp_row());
  Accumulator<C> o;
  const Partial total = partial_of<C::value>(scratch, blockIdx.x);
  reset<C>(rows, o);
  bool any = false;
  for (std::int32_t g = item.key_begin / segment_keys; g * segment_keys < item.key_end; ++g) {
    const Segment keys(item, g);
    if (keys.empty()) continue;
    if (any) store_partial<C>(item, total, warp_row(), rows, o);
    run_segment<C>(p, item, keys, shared, rows, o);
    if (any) fold_stored<C>(item, total, warp_row(), rows, o);
    any = true;
  }
  ptx::copy_async_wait<0>();  // without keys the queries would still be under way
  store_output<C>(p, item, warp_row(), rows, o);
  __syncthreads();  // shared.q is free for the next item
}

template <class C>
__global__ void __launch_bounds__(C::threads, C::blocks)
    attention_kernel(const __grid_constant__ AttentionParams p,
                     const __grid_constant__ SimtLaunch launch) {
  extern __shared__ std::byte bytes[];
  auto& shared = *reinterpret_cast<Storage<C>*>(bytes);
  clear_gaps<typename C::T>(p);
  const std::int64_t items = static_cast<std::int64_t>(*p.batch.tile_count) * launch.head_slots;
  for (std::int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    const auto tile = static_cast<std::int32_t>(i / launch.head_slots);
    const Item item = make_item(p, tile, static_cast<std::int32_t>(i % launch.head_slots),
                                launch.tile_rows, launch.head_chunk);
    run_item<C>(p, item, launch.scratch, shared);
  }
}

/// One segment of one item a block; the results wait in scratch for combine_kernel.
template <class C>
__global__ void __launch_bounds__(C::threads, C::blocks)
    segment_kernel(const __grid_constant__ AttentionParams p,
                   const __grid_constant__ SimtLaunch launch) {
  extern __shared__ std::byte bytes[];
  auto& shared = *reinterpret_cast<Storage<C>*>(bytes);
  clear_gaps<typename C::T>(p);
  const std::int64_t per_tile = static_cast<std::int64_t>(launch.head_slots) * launch.segments;
  const std::int64_t items = *p.batch.tile_count * per_tile;
  for (std::int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    const auto tile = static_cast<std::int32_t>(i / per_tile);
    const auto slot = static_cast<std::int32_t>(i % per_tile / launch.segments);
    const auto g = static_cast<std::int32_t>(i % launch.segments);
    const Item item = make_item(p, tile, slot, launch.tile_rows, launch.head_chunk);
    const Segment keys(item, g);
    if (keys.empty()) continue;
    load_q<C>(p, item, shared.q);
    RowState rows = row_state(p, item, warp_row());
    Accumulator<C> o;
    run_segment<C>(p, item, keys, shared, rows, o);
    store_partial<C>(item, partial_of<C::value>(launch.scratch, i), warp_row(), rows, o);
    __syncthreads();
  }
}

template <class C>
void launch_config(const AttentionParams& p, const SimtLaunch& launch, cudaStream_t stream) {
  using T = typename C::T;
  constexpr auto bytes = static_cast<int>(sizeof(Storage<C>));
  const auto start = [&](auto* kernel) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "cudaFuncSetAttribute");
    kernel<<<launch.blocks, C::threads, bytes, stream>>>(p, launch);
    check(cudaGetLastError(), "simt/attention");
  };
  if (launch.segments == 1) {
    start(attention_kernel<C>);
    return;
  }
  start(segment_kernel<C>);
  combine_kernel<T, C::value><<<launch.blocks, simt_threads, 0, stream>>>(p, launch);
  check(cudaGetLastError(), "simt/attention");
}

template <class T>
void launch_dtype(const AttentionParams& p, const SimtLaunch& launch, cudaStream_t stream) {
  //                                                                D  Dv  keys stages warps blocks
  switch (launch.bucket) {
    case Bucket::d64: return launch_config<Config<T, 64, 64, 64, 3, 4, 3>>(p, launch, stream);
    case Bucket::d128: return launch_config<Config<T, 128, 128, 32, 3, 4, 3>>(p, launch, stream);
    case Bucket::d192_128:
      return launch_config<Config<T, 192, 128, 32, 3, 4, 2>>(p, launch, stream);
    case Bucket::d256: return launch_config<Config<T, 256, 256, 32, 2, 4, 2>>(p, launch, stream);
  }
}

}  // namespace

void launch_simt_attention(const AttentionParams& p, const SimtLaunch& launch, DType dtype,
                           cudaStream_t stream) {
  dtype == DType::f16 ? launch_dtype<__half>(p, launch, stream)
                      : launch_dtype<__nv_bfloat16>(p, launch, stream);
}

}  // namespace packattn::cuda
