// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/attention_params.h"
#include "cuda/ptx.cuh"
#include "cuda/simt_attention.h"

// What the simt attention kernels share: which rows and keys a block works on, how segments meet,
// and how a row ends.

namespace packattn::cuda {

constexpr float log2e = 1.4426950408889634F;

template <class T>
__device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  else return __float2bfloat16_rn(x);
}

/// The work of one block: a tile, a key head, and the segments it goes through.
struct Item {
  DeviceSequence sequence;
  std::int32_t n;          ///< the sequence's number
  std::int32_t first_row;  ///< first query token of the tile
  std::int32_t head_k;
  std::int32_t first_head;  ///< first query head, relative to the group
  std::int32_t heads;       ///< query heads of the tile
  std::int32_t rows;        ///< packed rows in use
  std::int32_t shift;
  std::int32_t key_begin, key_end;  ///< keys that any row of the tile sees
};

__device__ inline std::int32_t clamp_key(std::int32_t x, std::int32_t length) {
  return min(max(x, 0), length);
}

__device__ inline Item make_item(const AttentionParams& p, std::int32_t tile,
                                 std::int32_t head_slot, int tile_rows, int head_chunk) {
  const Tile at = p.batch.tiles[tile];
  Item item;
  item.n = at.sequence;
  item.sequence = p.batch.sequences[at.sequence];
  item.first_row = at.row;
  const int chunks = (p.group + head_chunk - 1) / head_chunk;
  item.head_k = head_slot / chunks;
  item.first_head = (head_slot % chunks) * head_chunk;
  item.heads = min(head_chunk, p.group - item.first_head);
  const int tokens = min(tile_rows, item.sequence.q_length - at.row);
  item.rows = tokens * item.heads;
  item.shift = p.bottom_right ? item.sequence.k_length - item.sequence.q_length : 0;
  const std::int32_t first = at.row + item.shift;
  const std::int32_t last = first + tokens - 1;
  item.key_begin = clamp_key(first - p.left, item.sequence.k_length);
  item.key_end = clamp_key(last + p.right + 1, item.sequence.k_length);
  return item;
}

/// First element of a key's row, through the block table where there is one.
template <class T>
__device__ const T* key_row(const AttentionParams& p, const Item& item, const KeyRows& rows,
                            std::int32_t key) {
  const auto* data = static_cast<const T*>(rows.data) + item.head_k * rows.head_stride;
  if (p.batch.block_table == nullptr) return data + (item.sequence.k_start + key) * rows.row_stride;
  const auto slot = key / p.page_size;
  const auto within = key % p.page_size;
  const std::int64_t page = p.batch.block_table[item.n * p.batch.table_stride + slot];
  return data + page * rows.page_stride + within * rows.row_stride;
}

/// tanh for scores whose inputs had 16 bits: absolute error 1e-7, a tenth of tanhf's code.
struct FastTanh {
  __device__ float operator()(float x) const {
    return 1 - __fdividef(2, 1 + ptx::exp2_approx(2 * log2e * x));
  }
};
struct ExactTanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};

/// Scale, softcap and ALiBi: a product becomes a score.
template <class Tanh>
__device__ float transform(const AttentionParams& p, float s, float slope, std::int32_t distance) {
  float x = s * p.scale;
  if (p.softcap > 0) x = p.softcap * Tanh{}(x / p.softcap);
  if (p.slopes != nullptr) x -= slope * fabsf(static_cast<float>(distance));
  return x;
}

/// Where the (m, l, acc) of a tile's rows are kept between segments.
struct Partial {
  float* sums;  ///< [tile_m, 2]: m and l
  float* acc;   ///< [simt_tile, padded value size]
};

template <int value>
__device__ Partial partial_of(float* scratch, std::int64_t index) {
  float* at = scratch + index * simt_tile * (value + 2);
  return {at, at + 2 * simt_tile};
}

/// (M, L, O) and (m, l, acc) over disjoint keys, joined; the only place where segments meet.
struct Fold {
  float m, l, old_weight, new_weight;
  __device__ Fold(float old_m, float old_l, float new_m, float new_l) {
    m = fmaxf(old_m, new_m);
    const float base = m == -INFINITY ? 0 : m;
    old_weight = ptx::exp2_approx((old_m - base) * log2e);
    new_weight = ptx::exp2_approx((new_m - base) * log2e);
    l = __fmaf_rn(old_l, old_weight, __fmul_rn(new_l, new_weight));
  }
  __device__ float operator()(float old_acc, float new_acc) const {
    return __fmaf_rn(old_acc, old_weight, __fmul_rn(new_acc, new_weight));
  }
};

/// The sink joins the denominator; then the row's divisor and its lse.
struct Finish {
  float inverse, lse;
  __device__ Finish(const AttentionParams& p, int head, float m, float l, float& weight) {
    weight = 1;
    if (p.sinks != nullptr) {
      const Fold fold(m, l, p.sinks[head * p.sinks_stride], 1);
      weight = fold.old_weight;
      m = fold.m;
      l = fold.l;
    }
    inverse = l > 0 ? 1 / l : 0;
    lse = l > 0 ? m + logf(l) : (l == 0 ? -INFINITY : l);
    if (isnan(l)) inverse = l;
  }
};

template <class T>
__device__ void store_one(const AttentionParams& p, std::int64_t offset, float x) {
  if (p.out_fp32) {
    static_cast<float*>(p.out.data)[offset] = x;
  } else {
    static_cast<T*>(p.out.data)[offset] = from_float<T>(x);
  }
}

/// Where a packed row's results go.
struct Target {
  std::int64_t token;
  int head;
  __device__ Target(const AttentionParams& p, const Item& item, int row)
      : token(item.sequence.q_start + item.first_row + row / item.heads),
        head(item.head_k * p.group + item.first_head + row % item.heads) {}
};

template <class T>
__device__ void clear_gaps(const AttentionParams& p) {
  const int heads = p.heads_k * p.group;
  for (std::int32_t n = static_cast<std::int32_t>(blockIdx.x); n <= p.batch.size;
       n += static_cast<std::int32_t>(gridDim.x)) {
    const Gap gap = p.batch.gaps[n];
    for (std::int64_t row = gap.begin; row < gap.end; ++row) {
      for (int head = 0; head < heads; ++head) {
        const std::int64_t base = row * p.out.row_stride + head * p.out.head_stride;
        for (int i = static_cast<int>(threadIdx.x); i < p.value_dim;
             i += static_cast<int>(blockDim.x)) {
          store_one<T>(p, base + i, 0);
        }
        if (p.lse != nullptr && threadIdx.x == 0) p.lse[head * p.lse_stride + row] = -INFINITY;
      }
    }
  }
}

/// The keys of segment g that a tile sees.
struct Segment {
  std::int32_t begin, end;
  __device__ Segment(const Item& item, std::int32_t g)
      : begin(max(item.key_begin, g * segment_keys)),
        end(min(item.key_end, (g + 1) * segment_keys)) {}
  __device__ bool empty() const { return begin >= end; }
};

/// Folds parts [0, count) of a tile in order and writes its rows; a warp a row. `part(g)` is where
/// part g lies, or a part without sums if it saw no keys.
template <class T, int value, class PartOf>
__device__ void combine_item(const AttentionParams& p, const Item& item, std::int32_t count,
                             PartOf part_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < item.rows;
       row += static_cast<int>(blockDim.x) / 32) {
    float m = -INFINITY;
    float l = 0;
    float o[value / 32] = {};
    for (std::int32_t g = 0; g < count; ++g) {
      const Partial part = part_of(g);
      if (part.sums == nullptr) continue;
      const Fold fold(m, l, part.sums[2 * row], part.sums[2 * row + 1]);
      m = fold.m;
      l = fold.l;
#pragma unroll
      for (int j = 0; j < value / 32; ++j) {
        o[j] = fold(o[j], part.acc[row * value + j * 32 + lane]);
      }
    }
    const Target to(p, item, row);
    float weight;
    const Finish finish(p, to.head, m, l, weight);
    const float factor = __fmul_rn(weight, finish.inverse);
    const std::int64_t base = to.token * p.out.row_stride + to.head * p.out.head_stride;
#pragma unroll
    for (int j = 0; j < value / 32; ++j) {
      const int column = j * 32 + lane;
      if (column < p.value_dim) store_one<T>(p, base + column, o[j] * factor);
    }
    if (p.lse != nullptr && lane == 0) p.lse[to.head * p.lse_stride + to.token] = finish.lse;
  }
}

/// Joins the segments that different blocks computed.
template <class T, int value>
__global__ void __launch_bounds__(simt_threads)
    combine_kernel(const __grid_constant__ AttentionParams p,
                   const __grid_constant__ SimtLaunch launch) {
  const std::int64_t items = static_cast<std::int64_t>(*p.batch.tile_count) * launch.head_slots;
  for (std::int64_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item = make_item(p, static_cast<std::int32_t>(i / launch.head_slots),
                                static_cast<std::int32_t>(i % launch.head_slots), launch.tile_rows,
                                launch.head_chunk);
    combine_item<T, value>(p, item, launch.segments, [&](std::int32_t g) {
      return Segment(item, g).empty() ? Partial{nullptr, nullptr}
                                      : partial_of<value>(launch.scratch, i * launch.segments + g);
    });
  }
}

}  // namespace packattn::cuda
