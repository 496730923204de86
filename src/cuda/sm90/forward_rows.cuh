// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "cuda/attention_params.h"
#include "cuda/fragments.cuh"
#include "cuda/ptx.cuh"
#include "cuda/sm90/attention_forward.h"
#include "cuda/sm90/ptx.cuh"

// What happens to rows between the products of sm90/attention_forward: which keys they see, what
// scores become, how a row ends. A thread has two rows of its warpgroup's 64, a quad of threads a
// row, each thread two columns of every eight.

namespace packattn::cuda::sm90 {

constexpr float log2e = 1.4426950408889634F;
constexpr int warpgroup = 128;

/// A packed row's token and head, from the first of its tile.
struct PackedRow {
  int token, head;
  /// Exact for the 128 rows of a tile; a division would be the longest part of a short item's end.
  __device__ PackedRow(const ForwardLaunch& launch, int row)
      : token(static_cast<int>(static_cast<unsigned>(row) * launch.inverse_chunk >> 16)),
        head(row - token * launch.head_chunk) {}
};

/// A product's columns in pieces that one instruction makes.
template <int width>
struct Pieces {
  static constexpr int piece = width % 128 == 0 ? 128 : 64;
  static constexpr int count = width / piece;
  float at[count][piece / 2];
  /// Column block n of 8, the thread's row `half`, column c of its two.
  __device__ float& operator()(int n, int half, int c) {
    return at[n / (piece / 8)][n % (piece / 8) * 4 + 2 * half + c];
  }
  __device__ void clear() {
    each([](float& x, int, int) { x = 0; });
  }
  /// Calls f(x, half, column) for each of the thread's elements, columns from its first on.
  template <class F>
  __device__ void each(F&& f) {
#pragma unroll
    for (int n = 0; n < width / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) f((*this)(n, i / 2, i % 2), i / 2, n * 8 + i % 2);
    }
  }
  __device__ void pin() {
#pragma unroll
    for (auto& piece : at) ptx::wgmma_pin(piece);
  }
};

struct ForwardItem {
  std::int64_t q_start, k_start;
  std::int32_t n, first_row, rows, first_head, head_k;
  std::int32_t shift, k_length;
  std::int32_t tile_begin, tile_end;    ///< key tiles that any row sees
  std::int32_t whole_begin, whole_end;  ///< keys that every row sees
};

__device__ inline std::int32_t clamp_to(std::int32_t x, std::int32_t length) {
  return min(max(x, 0), length);
}

template <class C>
__device__ ForwardItem make_item(const AttentionParams& p, const ForwardLaunch& launch,
                                 std::int64_t index) {
  const Tile at = p.batch.tiles[index / launch.head_slots];
  const DeviceSequence sequence = p.batch.sequences[at.sequence];
  ForwardItem item;
  item.n = at.sequence;
  item.q_start = sequence.q_start;
  item.k_start = sequence.k_start;
  item.k_length = sequence.k_length;
  item.first_row = at.row;
  item.first_head = static_cast<std::int32_t>(index % launch.head_slots) * launch.head_chunk;
  item.head_k = item.first_head / p.group;
  const std::int32_t tokens = min(launch.tile_rows, sequence.q_length - at.row);
  item.rows = tokens * launch.head_chunk;
  item.shift = p.bottom_right ? sequence.k_length - sequence.q_length : 0;
  const std::int32_t first = at.row + item.shift;
  const std::int32_t last = first + tokens - 1;
  const std::int32_t begin = clamp_to(first - p.left, sequence.k_length);
  const std::int32_t end = clamp_to(last + p.right + 1, sequence.k_length);
  item.tile_begin = begin / C::keys;
  item.tile_end = begin < end ? (end + C::keys - 1) / C::keys : item.tile_begin;
  item.whole_begin = last - p.left;
  item.whole_end = min(first + p.right + 1, sequence.k_length);
  return item;
}

/// What is known of a thread's two rows so far.
struct RowSums { float m[2], l[2]; };
/// A thread's two rows.
struct RowState : RowSums {
  std::int32_t low[2], high[2];         ///< keys it sees
  std::int32_t whole_begin, whole_end;  ///< keys that every row of the item sees
  float slope[2];
};

/// Scale, softcap and ALiBi: products become scores.
template <class C>
__device__ void transform(const AttentionParams& p, std::int32_t column, const RowState& rows,
                          Pieces<C::keys>& s) {
  s.each([&](float& x, int, int) { x *= p.scale; });
  if (p.softcap > 0) {
    // tanh to an absolute error of 1e-7.
    const float factor = 2 * log2e / p.softcap;
    s.each([&](float& x, int, int) {
      x = p.softcap * (1 - __fdividef(2, 1 + ptx::exp2_approx(x * factor)));
    });
  }
  if (p.slopes != nullptr) {
    s.each([&](float& x, int half, int key) {
      const std::int32_t distance = rows.low[half] + p.left - column - key;
      x -= rows.slope[half] * fabsf(static_cast<float>(distance));
    });
  }
}

/// What the options make of a tile of products. A tile that every row sees whole needs no mask, and
/// its bits are the same either way.
template <class C>
__device__ void finish_scores(const AttentionParams& p, std::int32_t tile, const RowState& rows,
                              Pieces<C::keys>& s) {
  const std::int32_t first = tile * C::keys;
  const std::int32_t column = first + 2 * (static_cast<int>(threadIdx.x) % 4);
  if constexpr (C::general) transform<C>(p, column, rows, s);
  if (rows.whole_begin <= first && first + C::keys <= rows.whole_end) return;
  s.each([&](float& x, int half, int key) {
    if (column + key < rows.low[half] || column + key >= rows.high[half]) x = -INFINITY;
  });
}

/// Scores become weights; maximum and sum move on, and the factor for what was summed before.
template <class C>
__device__ void softmax_step(float factor, RowState& rows, Pieces<C::keys>& s,
                             float (&rescale)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float tops[4] = {rows.m[half], -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < C::keys / 8; ++n) {
      tops[n % 4] = fmaxf(tops[n % 4], fmaxf(s(n, half, 0), s(n, half, 1)));
    }
    const float top = quad_max(fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])));
    const float base = top == -INFINITY ? 0 : top;
    rescale[half] = ptx::exp2_approx((rows.m[half] - base) * factor);
    rows.m[half] = top;
    float sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < C::keys / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        // The difference first: a fused x * factor - m * factor would not be 0 for a lone key.
        const float x = ptx::exp2_approx((s(n, half, c) - base) * factor);
        s(n, half, c) = x;
        sum[c] += x;
      }
    }
    rows.l[half] = __fmaf_rn(rows.l[half], rescale[half], sum[0] + sum[1]);
  }
}

template <class C>
__device__ void rescale_output(const float (&rescale)[2], Pieces<C::value>& o) {
  // Multiplying by 1 changes no bit, so that leaving it out ties no row to its neighbours.
  if (__all_sync(0xffffffffU, rescale[0] == 1 && rescale[1] == 1)) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < C::value / 8; ++n) {
      o(n, half, 0) *= rescale[half];
      o(n, half, 1) *= rescale[half];
    }
  }
}

template <class C>
using Weights = std::uint32_t[C::keys / 16][4];

template <class C>
__device__ void round_weights(Pieces<C::keys>& s, Weights<C>& p) {
#pragma unroll
  for (int kk = 0; kk < C::keys / 16; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[kk][i] = pack<typename C::T>(s(2 * kk + i / 2, i % 2, 0), s(2 * kk + i / 2, i % 2, 1));
    }
  }
}

/// What a row's sum and sink make of its outputs.
struct Finish {
  float factor, lse;
  __device__ Finish(const AttentionParams& p, int head, float m, float l) {
    float weight = 1;
    if (p.sinks != nullptr) {
      const float sink = p.sinks[head * p.sinks_stride];
      const float top = fmaxf(m, sink);
      const float base = top == -INFINITY ? 0 : top;
      weight = ptx::exp2_approx((m - base) * log2e);
      l = __fmaf_rn(l, weight, ptx::exp2_approx((sink - base) * log2e));
      m = top;
    }
    factor = isnan(l) ? l : (l > 0 ? __fmul_rn(weight, 1 / l) : 0);
    lse = l > 0 ? m + logf(l) : (l == 0 ? -INFINITY : l);
  }
};

/// A 4 x 4 transposition within the quad: 4 bytes of each of 4 column blocks become 16 of one.
__device__ inline void transpose_quad(std::uint32_t (&w)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffU, odd ? w[i] : w[i + 1], 1);
    w[i] = odd ? got : w[i];
    w[i + 1] = odd ? w[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? w[i] : w[i + 2], 2);
    w[i] = upper ? got : w[i];
    w[i + 2] = upper ? w[i + 2] : got;
  }
}

/// One row, which all lanes of its quad call; only valid rows are written.
template <class C, int half>
__device__ void store_row(const AttentionParams& p, std::int64_t base, float factor, bool valid,
                          Pieces<C::value>& o) {
  using T = typename C::T;
  int quad = static_cast<int>(threadIdx.x) % 4;
  ptx::forget(quad);
  if (p.out_fp32) {
    float* to = static_cast<float*>(p.out.data) + base + 2 * quad;
#pragma unroll
    for (int n = 0; n < C::value / 8; ++n) {
      if (valid && n * 8 < p.value_dim) {
        *reinterpret_cast<float2*>(to + n * 8) =
            make_float2(o(n, half, 0) * factor, o(n, half, 1) * factor);
      }
    }
    return;
  }
  T* to = static_cast<T*>(p.out.data) + base + 8 * quad;
#pragma unroll
  for (int g = 0; g < C::value / 32; ++g) {
    std::uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = pack<T>(o(4 * g + i, half, 0) * factor, o(4 * g + i, half, 1) * factor);
    }
    transpose_quad(w);
    if (valid && g * 32 + 8 * quad < p.value_dim) {
      *reinterpret_cast<uint4*>(to + g * 32) = uint4{w[0], w[1], w[2], w[3]};
    }
  }
}

/// The row of the tile behind a thread's `half`.
__device__ inline int row_of(int group, int half) {
  int thread = static_cast<int>(threadIdx.x) % warpgroup;
  ptx::forget(thread);  // what follows from it costs less than the registers to keep it
  return group * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
}

/// `half` is a template's because a loop over it would not be unrolled where the rows are long.
template <class C, int half>
__device__ void store_half(const AttentionParams& p, const ForwardLaunch& launch,
                           const ForwardItem& item, int group, const RowSums& rows,
                           Pieces<C::value>& o) {
  const int row = row_of(group, half);
  const bool valid = row < item.rows;
  const PackedRow at(launch, row);
  const std::int64_t token = item.q_start + item.first_row + at.token;
  const int head = item.first_head + at.head;
  const float m = C::general ? rows.m[half] : rows.m[half] * p.scale;
  const Finish finish(p, valid ? head : 0, m, quad_sum(rows.l[half]));
  store_row<C, half>(p, token * p.out.row_stride + head * p.out.head_stride, finish.factor, valid,
                     o);
  if (p.lse != nullptr && threadIdx.x % 4 == 0 && valid) {
    p.lse[head * p.lse_stride + token] = finish.lse;
  }
}

template <class C>
__device__ RowState row_state(const AttentionParams& p, const ForwardLaunch& launch,
                              const ForwardItem& item, int group) {
  RowState rows;
  rows.whole_begin = item.whole_begin;
  rows.whole_end = item.whole_end;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(row_of(group, half), item.rows - 1);
    const PackedRow at(launch, row);
    const std::int32_t diagonal = item.first_row + at.token + item.shift;
    rows.low[half] = diagonal - p.left;
    rows.high[half] = min(diagonal + p.right + 1, item.k_length);
    rows.m[half] = -INFINITY;
    rows.l[half] = 0;
    rows.slope[half] = 0;
    if (C::general && p.slopes != nullptr) {
      const int head = item.first_head + at.head;
      rows.slope[half] = p.slopes[item.n * p.slopes_sequence_stride + head * p.slopes_head_stride];
    }
  }
  return rows;
}

__device__ inline void clear_row(const AttentionParams& p, std::int64_t token, int head, int words,
                                 int thread, int threads) {
  const std::int64_t at = token * p.out.row_stride + head * p.out.head_stride;
  auto* to =
      reinterpret_cast<uint4*>(static_cast<std::byte*>(p.out.data) + at * (p.out_fp32 ? 4 : 2));
  for (int i = thread; i < words; i += threads) to[i] = uint4{0, 0, 0, 0};
}

/// Output rows that belong to no sequence, by one warp.
__device__ inline void clear_gaps(const AttentionParams& p) {
  constexpr int threads = 32;
  const int thread = static_cast<int>(threadIdx.x) % 32;
  const int words = p.value_dim * (p.out_fp32 ? 4 : 2) / 16;
  for (auto n = static_cast<std::int32_t>(blockIdx.x); n <= p.batch.size;
       n += static_cast<std::int32_t>(gridDim.x)) {
    const Gap gap = p.batch.gaps[n];
    for (std::int64_t row = gap.begin; row < gap.end; ++row) {
      for (int head = 0; head < p.heads_k * p.group; ++head) {
        clear_row(p, row, head, words, thread, threads);
        if (p.lse != nullptr && thread == 0) p.lse[head * p.lse_stride + row] = -INFINITY;
      }
    }
  }
}

/// Rows without a visible key, by the lanes of a warp.
__device__ inline void store_nothing(const AttentionParams& p, const ForwardLaunch& launch,
                                     const ForwardItem& item) {
  const int words = p.value_dim * (p.out_fp32 ? 4 : 2) / 16;
  for (int row = 0; row < item.rows; ++row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const PackedRow at(launch, row);
    const std::int64_t token = item.q_start + item.first_row + at.token;
    const int head = item.first_head + at.head;
    clear_row(p, token, head, words, lane, 32);
    if (p.lse != nullptr && lane == 0) {
      p.lse[head * p.lse_stride + token] =
          p.sinks != nullptr ? p.sinks[head * p.sinks_stride] : -INFINITY;
    }
  }
}

}  // namespace packattn::cuda::sm90
