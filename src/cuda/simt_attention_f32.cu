// SPDX-License-Identifier: Apache-2.0
// simt/attention for fp32: plain multiply-adds, since tensor cores would round the inputs.
//
// The same tiles, segments and fold as the 16-bit kernel. A warp takes the packed rows of its tile
// one after the other: each lane owns one key of a 32-key tile for the scores, and every 32nd value
// column for the output.
#include <cuda_runtime.h>

#include "cuda/attention_items.cuh"

namespace packattn::cuda {
namespace {

constexpr int threads = 256;  // eight rows a warp, so that their accumulators stay in registers
constexpr int warps = threads / 32;
constexpr int rows_per_warp = simt_tile / warps;
constexpr int keys = 32;

/// Rows are padded by one element, so that lanes reading one column meet no bank conflicts.
template <int head, int value>
struct Storage {
  float q[warps][head];
  float k[keys][head + 1];
  float v[keys][value];
};

template <int width, int pitch>
__device__ void load_keys(const AttentionParams& p, const Item& item, const KeyRows& rows, int dim,
                          std::int32_t first, float (*to)[pitch]) {
  for (int i = static_cast<int>(threadIdx.x); i < keys * width; i += threads) {
    const int row = i / width;
    const int column = i % width;
    const bool valid = first + row < item.key_end && column < dim;
    to[row][column] = valid ? key_row<float>(p, item, rows, first + row)[column] : 0;
  }
}

/// (m, l, acc) of the warp's rows; lane j owns value columns j, j + 32, ...
template <int value>
struct RowSet {
  float m[rows_per_warp];
  float l[rows_per_warp];
  float acc[rows_per_warp][value / 32];
};

__device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, step));
  return x;
}
__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

/// One row against the tile in shared memory.
template <int head, int value>
__device__ void row_step(const AttentionParams& p, const Item& item, int row, std::int32_t first,
                         Storage<head, value>& shared, float& m, float& l, float* acc) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Target at(p, item, row);
  const auto* q =
      static_cast<const float*>(p.q.data) + at.token * p.q.row_stride + at.head * p.q.head_stride;
  for (int d = lane; d < head; d += 32) shared.q[warp][d] = d < p.head_dim ? q[d] : 0;
  __syncwarp();
  float s = 0;
#pragma unroll 8
  for (int d = 0; d < head; ++d) s = __fmaf_rn(shared.q[warp][d], shared.k[lane][d], s);

  const std::int32_t diagonal = item.first_row + row / item.heads + item.shift;
  const std::int32_t key = first + lane;
  const bool visible =
      key >= diagonal - p.left && key <= diagonal + p.right && key < item.sequence.k_length;
  const float slope =
      p.slopes == nullptr
          ? 0
          : p.slopes[item.n * p.slopes_sequence_stride + at.head * p.slopes_head_stride];
  const float x = visible ? transform<ExactTanh>(p, s, slope, diagonal - key) : -INFINITY;
  const float top = fmaxf(m, warp_max(x));
  const float base = top == -INFINITY ? 0 : top;
  const float rescale = exp2f((m - base) * log2e);
  const float weight = exp2f((x - base) * log2e);
  m = top;
  l = __fmaf_rn(l, rescale, warp_sum(weight));
#pragma unroll
  for (int j = 0; j < value / 32; ++j) acc[j] *= rescale;
  for (int i = 0; i < keys; ++i) {
    const float w = __shfl_sync(0xffffffffU, weight, i);
    if (w == 0) continue;  // the same for all lanes; a weight of 0 adds nothing
#pragma unroll
    for (int j = 0; j < value / 32; ++j) {
      acc[j] = __fmaf_rn(w, shared.v[i][j * 32 + lane], acc[j]);
    }
  }
  __syncwarp();
}

template <int head, int value>
__device__ void run_segment(const AttentionParams& p, const Item& item, const Segment& segment,
                            Storage<head, value>& shared, RowSet<value>& set) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int r = 0; r < rows_per_warp; ++r) {
    set.m[r] = -INFINITY;
    set.l[r] = 0;
#pragma unroll
    for (float& x : set.acc[r]) x = 0;
  }
  for (std::int32_t first = segment.begin / keys * keys; first < segment.end; first += keys) {
    __syncthreads();
    load_keys<head, head + 1>(p, item, p.k, p.head_dim, first, shared.k);
    load_keys<value, value>(p, item, p.v, p.value_dim, first, shared.v);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
      const int row = r * warps + warp;
      if (row < item.rows) {
        row_step(p, item, row, first, shared, set.m[r], set.l[r], set.acc[r]);
      }
    }
  }
}

/// Joins the set with the total in scratch (if there is one) and stores it there.
template <int value>
__device__ void fold_into(const Item& item, const Partial& total, bool fresh,
                          const RowSet<value>& set) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int r = 0; r < rows_per_warp; ++r) {
    const int row = r * warps + warp;
    if (row >= item.rows) continue;
    float* sums = total.sums + 2 * row;
    float* acc = total.acc + row * value + lane;
    const Fold fold(fresh ? -INFINITY : sums[0], fresh ? 0 : sums[1], set.m[r], set.l[r]);
    __syncwarp();
    if (lane == 0) {
      sums[0] = fold.m;
      sums[1] = fold.l;
    }
#pragma unroll
    for (int j = 0; j < value / 32; ++j) {
      acc[j * 32] = fold(fresh ? 0 : acc[j * 32], set.acc[r][j]);
    }
  }
}

/// All segments of one item, folded in this block's scratch.
template <int head, int value>
__device__ void run_item(const AttentionParams& p, const Item& item, float* scratch,
                         Storage<head, value>& shared) {
  const Partial total = partial_of<value>(scratch, blockIdx.x);
  bool any = false;
  for (std::int32_t g = item.key_begin / segment_keys; g * segment_keys < item.key_end; ++g) {
    const Segment segment(item, g);
    if (segment.empty()) continue;
    RowSet<value> set;
    run_segment(p, item, segment, shared, set);
    fold_into(item, total, !any, set);
    any = true;
  }
  __syncthreads();  // the total's rows are finished by other warps
  combine_item<float, value>(p, item, any ? 1 : 0, [&](std::int32_t) { return total; });
  __syncthreads();
}

template <int head, int value>
__global__ void __launch_bounds__(threads, 1)
    attention_f32_kernel(const __grid_constant__ AttentionParams p,
                         const __grid_constant__ SimtLaunch launch) {
  extern __shared__ std::byte bytes[];
  auto& shared = *reinterpret_cast<Storage<head, value>*>(bytes);
  clear_gaps<float>(p);
  const std::int64_t per_tile = static_cast<std::int64_t>(launch.head_slots) * launch.segments;
  const std::int64_t items = *p.batch.tile_count * per_tile;
  for (std::int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item = make_item(p, static_cast<std::int32_t>(i / per_tile),
                                static_cast<std::int32_t>(i % per_tile / launch.segments),
                                launch.tile_rows, launch.head_chunk);
    if (launch.segments == 1) {
      run_item(p, item, launch.scratch, shared);
      continue;
    }
    const Segment segment(item, static_cast<std::int32_t>(i % launch.segments));
    if (segment.empty()) continue;
    RowSet<value> set;
    run_segment(p, item, segment, shared, set);
    fold_into(item, partial_of<value>(launch.scratch, i), true, set);
  }
}

template <int head, int value>
void launch_sizes(const AttentionParams& p, const SimtLaunch& launch, cudaStream_t stream) {
  constexpr auto bytes = static_cast<int>(sizeof(Storage<head, value>));
  auto* kernel = attention_f32_kernel<head, value>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
  kernel<<<launch.blocks, threads, bytes, stream>>>(p, launch);
  check(cudaGetLastError(), "simt/attention");
  if (launch.segments == 1) return;
  combine_kernel<float, value><<<launch.blocks, simt_threads, 0, stream>>>(p, launch);
  check(cudaGetLastError(), "simt/attention");
}

}  // namespace

void launch_simt_attention_f32(const AttentionParams& p, const SimtLaunch& launch,
                               cudaStream_t stream) {
  switch (launch.bucket) {
    case Bucket::d64: return launch_sizes<64, 64>(p, launch, stream);
    case Bucket::d128: return launch_sizes<128, 128>(p, launch, stream);
    case Bucket::d192_128: return launch_sizes<192, 128>(p, launch, stream);
    case Bucket::d256: return launch_sizes<256, 256>(p, launch, stream);
  }
}

}  // namespace packattn::cuda
