// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/attention_items.cuh"
#include "cuda/fragments.cuh"

// What the kernels on mma.sync share: a warp's 16 query rows against a tile of keys. Config C says
// the element type T, the padded sizes head and value, the keys of a tile, and whether tiles are
// boxes of the copy engine.

namespace packattn::cuda {

/// Address of 16-byte chunk `chunk` of a row, chunks permuted so that ldmatrix meets no conflicts.
template <int width, class T>
__device__ std::uint32_t swizzled(const T* base, int row, int chunk) {
  return ptx::shared_address(base) +
         static_cast<std::uint32_t>(row * width * 2 + ((chunk ^ (row & 7)) * 16));
}

/// The same in rows of 128 bytes, as the copy engine lays down boxes of 64 elements by `rows`.
template <int rows, class T>
__device__ std::uint32_t boxed(const T* base, int row, int chunk) {
  return ptx::shared_address(base) +
         static_cast<std::uint32_t>((chunk / 8 * rows + row) * 128 + ((chunk ^ row) & 7) * 16);
}

/// Where a chunk of a key's or value's row lies in C's tiles.
template <class C, int width>
__device__ std::uint32_t in_tile(const typename C::T* tile, int row, int chunk) {
  if constexpr (C::boxes) return boxed<C::keys>(tile, row, chunk);
  else return swizzled<width>(tile, row, chunk);
}

template <class C>
using Scores = float[C::keys / 8][4];
template <class C>
using Accumulator = float[C::value / 8][4];

/// S = Q K^T for 16 rows of q in shared memory and a tile of keys.
template <class C>
__device__ void scores(const typename C::T* q, const typename C::T* k, Scores<C>& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (auto& block : s) block[0] = block[1] = block[2] = block[3] = 0;
#pragma unroll(C::head > 192 ? 2 : 4)  // more, and 256 spills
  for (int kk = 0; kk < C::head / 16; ++kk) {
    std::uint32_t a[4];
    ptx::load_matrix_x4(a, swizzled<C::head>(q, lane % 16, 2 * kk + lane / 16));
#pragma unroll
    for (int n = 0; n < C::keys / 16; ++n) {
      std::uint32_t b[4];
      const int row = n * 16 + (lane / 16) * 8 + lane % 8;
      ptx::load_matrix_x4(b, in_tile<C, C::head>(k, row, 2 * kk + (lane / 8) % 2));
      ptx::mma_16816(s[2 * n], a, b[0], b[1], typename C::T{});
      ptx::mma_16816(s[2 * n + 1], a, b[2], b[3], typename C::T{});
    }
  }
}

/// O += P V for the warp's 16 rows.
template <class C>
__device__ void accumulate(const typename C::T* v, const Scores<C>& p, Accumulator<C>& o) {
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
          b, in_tile<C, C::value>(v, kk * 16 + lane % 16, 2 * n + lane / 16));
      ptx::mma_16816(o[2 * n], a, b[0], b[1], T{});
      ptx::mma_16816(o[2 * n + 1], a, b[2], b[3], T{});
    }
  }
}

/// The row of its warp's 16 that a thread's `half` of a fragment belongs to.
__device__ inline int fragment_row(int half) {
  return static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half;
}

/// A thread's two rows of the tile, one a half.
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

/// The rows of the thread in a warp whose first packed row is `first`.
__device__ inline RowState row_state(const AttentionParams& p, const Item& item, int first) {
  RowState rows{};
  for (int half = 0; half < 2; ++half) {
    const int row = min(first + fragment_row(half), max(item.rows - 1, 0));
    rows.diagonal[half] = item.first_row + row / item.heads + item.shift;
    const int head = item.head_k * p.group + item.first_head + row % item.heads;
    rows.slope[half] =
        p.slopes == nullptr
            ? 0
            : p.slopes[item.n * p.slopes_sequence_stride + head * p.slopes_head_stride];
  }
  return rows;
}

/// A warp's rows to scratch; `first` is its first packed row, here and below.
template <class C>
__device__ void store_partial(const Item& item, const Partial& to, int first, const RowState& rows,
                              const Accumulator<C>& o) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + fragment_row(half);
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
__device__ void fold_stored(const Item& item, const Partial& total, int first, RowState& rows,
                            Accumulator<C>& o) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + fragment_row(half);
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

/// The end of a row: the sink, the division, out and lse.
template <class C>
__device__ void store_output(const AttentionParams& p, const Item& item, int first,
                             const RowState& rows, const Accumulator<C>& o) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + fragment_row(half);
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

}  // namespace packattn::cuda
