// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/kda_prepare_tokens.cuh"

// kda_prepare: (I + A)^-1, and triangles of the image.

namespace packattn::cuda::sm90::prepare {

// ---- the triangular system ------------------------------------------------------------------

/// Inverse of the unit lower triangle of 16 tokens by forward substitution, a lane a column. The
/// other lanes clear what lies right of the upper block of a pair: the merges read it.
__device__ inline void invert_block(Storage& w, int block) {
  const int base = group_tokens * block;
  const int column = lane_index();
  if (column >= group_tokens) {
    if (block % 2 == 0) {
#pragma unroll
      for (int i = 0; i < group_tokens; ++i) w.u.solve.M[base + i][base + column] = 0;
    }
    return;
  }
  float x[group_tokens];
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    float sum = i == column ? 1.0F : 0.0F;
    float row[group_tokens];
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&w.A[base + i][base + j]);
      row[j] = four.x, row[j + 1] = four.y, row[j + 2] = four.z, row[j + 3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < i; ++j) sum = fmaf(-row[j], x[j], sum);
    x[i] = sum;
    w.u.solve.M[base + i][base + column] = sum;
  }
}

/// Parts of x that the tensor cores take: tf32 and what it leaves.
struct Split {
  std::uint32_t high, low;
  __device__ explicit Split(float x) {
    high = __float_as_uint(x) & 0xFFFFE000U;
    low = __float_as_uint(x - __uint_as_float(high));
  }
};

/// to = sign a b: 16 rows of a from `row`, eight columns of b, `depth` in all; three products of
/// tf32 parts, 2^-21 off.
template <int depth>
__device__ void multiply(Matrix& to, int row, int column, const Matrix& a, int a_column,
                         const Matrix& b, int b_row, float sign) {
  const int lane = lane_index();
  float sum[4] = {};
#pragma unroll
  for (int d = 0; d < depth; d += 8) {
    const float* at = &a[row + lane / 4][a_column + d + lane % 4];
    const Split a_parts[4] = {Split(at[0]), Split(at[8 * pitch]), Split(at[4]),
                              Split(at[8 * pitch + 4])};
    const float* bt = &b[b_row + d + lane % 4][column + lane / 4];
    const Split b_parts[2] = {Split(bt[0]), Split(bt[4 * pitch])};
    const std::uint32_t high[4] = {a_parts[0].high, a_parts[1].high, a_parts[2].high,
                                   a_parts[3].high};
    const std::uint32_t low[4] = {a_parts[0].low, a_parts[1].low, a_parts[2].low, a_parts[3].low};
    ptx::mma_1688_tf32(sum, low, b_parts[0].high, b_parts[1].high);
    ptx::mma_1688_tf32(sum, high, b_parts[0].low, b_parts[1].low);
    ptx::mma_1688_tf32(sum, high, b_parts[0].high, b_parts[1].high);
  }
  float* at = &to[row + lane / 4][column + 2 * (lane % 4)];
  at[0] = sign * sum[0];
  at[1] = sign * sum[1];
  at[8 * pitch] = sign * sum[2];
  at[8 * pitch + 1] = sign * sum[3];
}

/// M_10 = -M_11 A_10 M_00, for the pairs of blocks and then for the halves of the chunk.
__device__ inline void merge_blocks(Storage& w) {
  auto& [M, product] = w.u.solve;
  const int warp = warp_index();
  const int pair = 32 * (warp / 2);
  const int column = pair + 8 * (warp % 2);
  if (warp < 4) multiply<16>(product, pair + 16, column, w.A, pair, M, pair, 1);
  __syncthreads();
  if (warp < 4) multiply<16>(M, pair + 16, column, M, pair + 16, product, pair + 16, -1);
  __syncthreads();
  const int row = 32 + 16 * (warp / 4);
  multiply<32>(product, row, 8 * (warp % 4), w.A, 0, M, 0, 1);
  __syncthreads();
  multiply<32>(M, row, 8 * (warp % 4), M, 32, product, 32, -1);
}

/// Eight elements of a row of a lower triangle, zero above the diagonal.
struct Eight {
  float x[8];
  __device__ Eight(const Matrix& from, int row, int first) {
    const auto* at = reinterpret_cast<const float4*>(&from[row][first]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 four = at[n];
      x[4 * n] = four.x, x[4 * n + 1] = four.y, x[4 * n + 2] = four.z, x[4 * n + 3] = four.w;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = first + n <= row ? x[n] : 0.0F;
  }
  /// 16 bytes of the image; x becomes what rounding took from it.
  __device__ void put(std::uint16_t (&to)[64][64], int row, int first) {
    std::uint32_t words[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const __half2 pair = half_pair(x[2 * n], x[2 * n + 1]);
      const float2 rounded = __half22float2(pair);
      x[2 * n] -= rounded.x;
      x[2 * n + 1] -= rounded.y;
      words[n] = bits_of(pair);
    }
    const ImageRows rows{reinterpret_cast<std::byte*>(&to[0][0])};
    *reinterpret_cast<uint4*>(rows.at(row, 2 * first)) = {words[0], words[1], words[2], words[3]};
  }
};

}  // namespace packattn::cuda::sm90::prepare
