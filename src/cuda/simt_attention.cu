// SPDX-License-Identifier: Apache-2.0
// simt/attention for fp16 and bf16: every option, any card from compute capability 8.0.
//
// One block owns 64 packed rows (16 in decode): the query heads of one key head beside each other,
// token after token, so that short sequences and decode fill the tile and share its keys. Keys come
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

#include "cuda/simt_loads.cuh"

namespace packattn::cuda {
namespace {

template <class C>
using Scores = float[C::keys / 8][4];
template <class C>
using Accumulator = float[C::value / 8][4];

/// S = Q K^T for the warp's 16 rows.
template <class C>
__device__ void scores(const Storage<C>& shared, int stage, Scores<C>& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (auto& block : s) block[0] = block[1] = block[2] = block[3] = 0;
#pragma unroll(C::head > 192 ? 2 : 4)  // more, and 256 spills
  for (int kk = 0; kk < C::head / 16; ++kk) {
    std::uint32_t a[4];
    ptx::load_matrix_x4(a, swizzled<C::head>(shared.q, warp * 16 + lane % 16, 2 * kk + lane / 16));
#pragma unroll
    for (int n = 0; n < C::keys / 16; ++n) {
      std::uint32_t b[4];
      const int row = n * 16 + (lane / 16) * 8 + lane % 8;
      ptx::load_matrix_x4(b, swizzled<C::head>(shared.k[stage], row, 2 * kk + (lane / 8) % 2));
      ptx::mma_16816(s[2 * n], a, b[0], b[1], typename C::T{});
      ptx::mma_16816(s[2 * n + 1], a, b[2], b[3], typename C::T{});
    }
  }
}

template <class T>
__device__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 x = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&x);
  } else {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&x);
  }
}

/// O += P V for the warp's 16 rows.
template <class C>
__device__ void accumulate(const Storage<C>& shared, int stage, const Scores<C>& p,
                           Accumulator<C>& o) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  using T = typename C::T;
#pragma unroll
  for (int kk = 0; kk < C::keys / 16; ++kk) {
    const std::uint32_t a[4] = {
        pack<T>(p[2 * kk][0], p[2 * kk][1]), pack<T>(p[2 * kk][2], p[2 * kk][3]),
        pack<T>(p[2 * kk + 1][0], p[2 * kk + 1][1]), pack<T>(p[2 * kk + 1][2], p[2 * kk + 1][3])};
#pragma unroll
    for (int n = 0; n < C::value / 16; ++n) {
      std::uint32_t b[4];
      ptx::load_matrix_x4_transposed(
          b, swizzled<C::value>(shared.v[stage], kk * 16 + lane % 16, 2 * n + lane / 16));
      ptx::mma_16816(o[2 * n], a, b[0], b[1], T{});
      ptx::mma_16816(o[2 * n + 1], a, b[2], b[3], T{});
    }
  }
}

/// A thread's two rows of the tile: lane / 4 and that plus 8.
struct RowState {
  std::int32_t diagonal[2];  ///< row + shift
  float slope[2];
  float m[2], l[2];
};

/// Masks and transforms one row's scores. Unscaled scores of a tile that the row sees whole need
/// neither, and their bits are the same either way.
template <class C>
__device__ void finish_scores(const AttentionParams& p, const Item& item, std::int32_t first,
                              int half, const RowState& rows, Scores<C>& s) {
  const std::int32_t diagonal = rows.diagonal[half];
  const std::int32_t low = diagonal - p.left;
  const std::int32_t high = min(diagonal + p.right + 1, item.sequence.k_length);
  if (p.plain && low <= first && first + C::keys <= high) return;
  const int column = first + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int n = 0; n < C::keys / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const std::int32_t key = column + n * 8 + c;
      float& x = s[n][2 * half + c];
      if (!p.plain) x = transform<FastTanh>(p, x, rows.slope[half], diagonal - key);
      if (key < low || key >= high) x = -INFINITY;
    }
  }
}

__device__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}
__device__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

/// Scores become weights; the row's maximum and sum move on, and the accumulator with them.
template <class C>
__device__ void softmax_step(const AttentionParams& p, const Item& item, std::int32_t first,
                             RowState& rows, Scores<C>& s, Accumulator<C>& o) {
  const float factor = p.plain ? p.scale * log2e : log2e;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    finish_scores<C>(p, item, first, half, rows, s);
    float top = -INFINITY;
#pragma unroll
    for (auto& x : s) top = fmaxf(top, fmaxf(x[2 * half], x[2 * half + 1]));
    const float m = fmaxf(rows.m[half], quad_max(top));
    const float base = m == -INFINITY ? 0 : m;
    const float rescale = ptx::exp2_approx((rows.m[half] - base) * factor);
    float sum = 0;
#pragma unroll
    for (auto& x : s) {
      // The difference first: a fused x * factor - m * factor would not be 0 for a lone key.
      x[2 * half] = ptx::exp2_approx((x[2 * half] - base) * factor);
      x[2 * half + 1] = ptx::exp2_approx((x[2 * half + 1] - base) * factor);
      sum += x[2 * half] + x[2 * half + 1];
    }
    rows.m[half] = m;
    rows.l[half] = __fmaf_rn(rows.l[half], rescale, quad_sum(sum));
#pragma unroll
    for (auto& x : o) {
      x[2 * half] *= rescale;
      x[2 * half + 1] *= rescale;
    }
  }
}

template <class C>
__device__ void reset(RowState& rows, Accumulator<C>& o) {
  rows.m[0] = rows.m[1] = -INFINITY;
  rows.l[0] = rows.l[1] = 0;
#pragma unroll
  for (auto& block : o) block[0] = block[1] = block[2] = block[3] = 0;
}

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
    scores<C>(shared, stage, s);
    softmax_step<C>(p, item, key, rows, s, o);
    accumulate<C>(shared, stage, s, o);
    stage = (stage + 1) % C::stages;
  }
  __syncthreads();  // the stages are free for the next segment
  if (p.plain) {    // from here on a maximum is a score
    rows.m[0] *= p.scale;
    rows.m[1] *= p.scale;
  }
}

/// The packed row behind a thread's `half`.
__device__ int row_of(int half) {
  return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 +
         8 * half;
}

template <class C>
__device__ void store_partial(const Item& item, const Partial& to, const RowState& rows,
                              const Accumulator<C>& o) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(half);
    if (row >= item.rows) continue;
    if (column == 0) {
      to.sums[2 * row] = rows.m[half];
      to.sums[2 * row + 1] = rows.l[half];
    }
#pragma unroll
    for (int n = 0; n < C::value / 8; ++n) {
      *reinterpret_cast<float2*>(to.acc + row * C::value + n * 8 + column) =
          make_float2(o[n][2 * half], o[n][2 * half + 1]);
    }
  }
}

/// Folds the registers' segment into the stored total, leaving the result in the registers.
template <class C>
__device__ void fold_stored(const Item& item, const Partial& total, RowState& rows,
                            Accumulator<C>& o) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(half);
    if (row >= item.rows) continue;
    const Fold fold(total.sums[2 * row], total.sums[2 * row + 1], rows.m[half], rows.l[half]);
    rows.m[half] = fold.m;
    rows.l[half] = fold.l;
#pragma unroll
    for (int n = 0; n < C::value / 8; ++n) {
      const float2 old =
          *reinterpret_cast<const float2*>(total.acc + row * C::value + n * 8 + column);
      o[n][2 * half] = fold(old.x, o[n][2 * half]);
      o[n][2 * half + 1] = fold(old.y, o[n][2 * half + 1]);
    }
  }
  __syncwarp();  // a warp's rows are its own: all lanes have read the sums before one rewrites them
}

template <class C>
__device__ void store_output(const AttentionParams& p, const Item& item, const RowState& rows,
                             const Accumulator<C>& o) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(half);
    if (row >= item.rows) continue;
    const Target to(p, item, row);
    float weight;
    const Finish finish(p, to.head, rows.m[half], rows.l[half], weight);
    const std::int64_t base = to.token * p.out.row_stride + to.head * p.out.head_stride;
    const float factor = __fmul_rn(weight, finish.inverse);
#pragma unroll
    for (int n = 0; n < C::value / 8; ++n) {
      if (n * 8 + column >= p.value_dim) continue;
      for (int c = 0; c < 2; ++c) {
        store_one<typename C::T>(p, base + n * 8 + column + c, o[n][2 * half + c] * factor);
      }
    }
    if (p.lse != nullptr && column == 0) {
      p.lse[to.head * p.lse_stride + to.token] = finish.lse;
    }
  }
}

__device__ RowState row_state(const AttentionParams& p, const Item& item) {
  RowState rows{};
  for (int half = 0; half < 2; ++half) {
    const int row = min(row_of(half), max(item.rows - 1, 0));
    rows.diagonal[half] = item.first_row + row / item.heads + item.shift;
    const int head = item.head_k * p.group + item.first_head + row % item.heads;
    rows.slope[half] =
        p.slopes == nullptr
            ? 0
            : p.slopes[item.n * p.slopes_sequence_stride + head * p.slopes_head_stride];
  }
  return rows;
}

/// All segments of one item, folded in order.
template <class C>
__device__ void run_item(const AttentionParams& p, const Item& item, float* scratch,
                         Storage<C>& shared) {
  load_q<C>(p, item, shared);
  RowState rows = row_state(p, item);
  Accumulator<C> o;
  const Partial total = partial_of<C::value>(scratch, blockIdx.x);
  reset<C>(rows, o);
  bool any = false;
  for (std::int32_t g = item.key_begin / segment_keys; g * segment_keys < item.key_end; ++g) {
    const Segment keys(item, g);
    if (keys.empty()) continue;
    if (any) store_partial<C>(item, total, rows, o);
    run_segment<C>(p, item, keys, shared, rows, o);
    if (any) fold_stored<C>(item, total, rows, o);
    any = true;
  }
  ptx::copy_async_wait<0>();  // without keys the queries would still be under way
  store_output<C>(p, item, rows, o);
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
    load_q<C>(p, item, shared);
    RowState rows = row_state(p, item);
    Accumulator<C> o;
    run_segment<C>(p, item, keys, shared, rows, o);
    store_partial<C>(item, partial_of<C::value>(launch.scratch, i), rows, o);
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
  // The keys of a tile are part of a row's bits, so both heights have the same.
  //                                        D  Dv  keys stages warps blocks
  switch (launch.bucket) {
    case Bucket::d64:
      return launch.narrow ? launch_config<Config<T, 64, 64, 64, 2, 1, 6>>(p, launch, stream)
                           : launch_config<Config<T, 64, 64, 64, 3, 4, 3>>(p, launch, stream);
    case Bucket::d128:
      return launch.narrow ? launch_config<Config<T, 128, 128, 32, 2, 1, 6>>(p, launch, stream)
                           : launch_config<Config<T, 128, 128, 32, 3, 4, 3>>(p, launch, stream);
    case Bucket::d192_128:
      return launch.narrow ? launch_config<Config<T, 192, 128, 32, 2, 1, 4>>(p, launch, stream)
                           : launch_config<Config<T, 192, 128, 32, 3, 4, 2>>(p, launch, stream);
    case Bucket::d256:
      return launch.narrow ? launch_config<Config<T, 256, 256, 32, 2, 1, 2>>(p, launch, stream)
                           : launch_config<Config<T, 256, 256, 32, 2, 4, 2>>(p, launch, stream);
  }
}

}  // namespace

void launch_simt_attention(const AttentionParams& p, const SimtLaunch& launch, DType dtype,
                           cudaStream_t stream) {
  dtype == DType::f16 ? launch_dtype<__half>(p, launch, stream)
                      : launch_dtype<__nv_bfloat16>(p, launch, stream);
}

}  // namespace packattn::cuda
