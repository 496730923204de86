// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/kda_prepare_tokens.cuh"

// kda_prepare: A and B, level by level, and the rows of the image.

namespace packattn::cuda::sm90::prepare {

// ---- A and B within a group -----------------------------------------------------------------

/// Products of single decays around each token: from the start of its block of L tokens to itself,
/// and from behind itself to the end of the block.
struct Products {
  float2 from_start[group_tokens];
  float2 to_end[group_tokens];
};

__device__ inline float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
__device__ inline __half2 scaled(__half2 x, float2 decay) {
  return __hmul2(x, half_pair(decay.x, decay.y));
}

/// Blocks of L become blocks of 2 L.
template <int L>
__device__ void double_blocks(Products& d) {
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    if ((i & L) == 0) d.to_end[i] = times(d.to_end[i], d.from_start[(i | (2 * L - 1))]);
  }
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    if ((i & L) != 0) {
      d.from_start[i] = times(d.from_start[i], d.from_start[(i & ~(2 * L - 1)) + L - 1]);
    }
  }
}

/// Rows of the second half of each block of 2 L against columns of the first: the middle of the
/// block lies between them, so both decays are at most 1. The warp's own 64 channels.
template <int L>
__device__ void relate_level(const Rows& rows, const __half2 (&k)[group_tokens],
                             const __half2 (&q)[group_tokens][32], const Products& d,
                             float4& found) {
  float sum[4] = {};
  int row = 0;
  int column = 0;
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    const auto put = [&](int at, __half2 x) {
      *reinterpret_cast<__half2*>(rows.at(at, 4 * lane_index())) = x;
    };
    if ((i & L) != 0) {
      const __half2 decay = half_pair(d.from_start[i].x, d.from_start[i].y);
      put(row, __hmul2(k[i], decay));
      put(8 + row, __hmul2(q[i][lane_index()], decay));
      ++row;
    } else {
      put(16 + column, L == 1 ? k[i] : scaled(k[i], d.to_end[i]));
      ++column;
    }
  }
  __syncwarp();
  const int lane = lane_index();
#pragma unroll
  for (int x = 0; x < 4; x += 2) {
    std::uint32_t b[4];
    ptx::load_matrix_x4(b, ptx::shared_address(rows.at(16 + lane % 8, 32 * x + 16 * (lane / 8))));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      std::uint32_t a[4];
      ptx::load_matrix_x4(a,
                          ptx::shared_address(rows.at(lane % 16, 32 * (x + n) + 16 * (lane / 16))));
      ptx::mma_16816(sum, a, b[2 * n], b[2 * n + 1], __half());
    }
  }
  found = {sum[0], sum[1], sum[2], sum[3]};
}

/// Both halves of the channels of level L go to A and B.
template <int L>
__device__ void store_level(Storage& w, const Lane& lane, int level) {
  const float4 x = w.partial[2 * lane.group][level][lane_index()];
  const float4 y = w.partial[2 * lane.group + 1][level][lane_index()];
  const float a[2] = {x.x + y.x, x.y + y.y};
  const float b[2] = {x.z + y.z, x.w + y.w};
  const int base = group_tokens * lane.group;
  const auto nth = [](int m) { return (m & ~(L - 1)) * 2 + (m & (L - 1)); };
  const int i = nth(lane_index() / 4) + L;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int j = nth(2 * (lane_index() % 4) + n);
    if (i / (2 * L) != j / (2 * L)) continue;
    w.A[base + i][base + j] = w.beta[base + i] * a[n];
    w.B[base + i][base + j] = b[n];
  }
}

// ---- between groups, and the image ----------------------------------------------------------

__device__ inline void put_rows(const Rows& rows, int first, const __half2 (&x)[group_tokens],
                                const float2 (&decay)[group_tokens]) {
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    *reinterpret_cast<__half2*>(rows.at(first + i, 4 * lane_index())) = scaled(x[i], decay[i]);
  }
}

__device__ inline void extend(float2 (&decay)[group_tokens], float2 by) {
#pragma unroll
  for (float2& x : decay) x = times(x, by);
}

/// Operands of the levels of 16 and 32, then of the whole chunk: the last go to the image.
__device__ inline void spread(const Lane& lane, const __half2 (&k)[group_tokens],
                              const __half2 (&q)[group_tokens], Products& d, KdaImage& image,
                              Storage& w) {
  const auto total = [&](int group) {
    return *reinterpret_cast<const float2*>(&w.totals[group][lane.channel]);
  };
  const Rows pairs{&w.u.levels[0][lane.half][0][0]};
  const Rows halves{&w.u.levels[1][lane.half][0][0]};
  const int group = lane.group;
  if (group % 2 != 0) {
    put_rows(pairs, 48 * (group / 2), k, d.from_start);
    put_rows(pairs, 48 * (group / 2) + 16, q, d.from_start);
    extend(d.from_start, total(group - 1));
  } else {
    put_rows(pairs, 48 * (group / 2) + 32, k, d.to_end);
    extend(d.to_end, total(group + 1));
  }
  if (group >= 2) {
    put_rows(halves, 16 * (group - 2), k, d.from_start);
    put_rows(halves, 32 + 16 * (group - 2), q, d.from_start);
    extend(d.from_start, times(total(0), total(1)));
  } else {
    put_rows(halves, 64 + 16 * group, k, d.to_end);
    extend(d.to_end, times(total(2), total(3)));
  }
  const auto image_rows = [&](auto& matrix) {
    return ImageRows{reinterpret_cast<std::byte*>(&matrix[lane.half][group_tokens * group][0])};
  };
  const ImageRows k_start = image_rows(image.k_start);
  const ImageRows q_start = image_rows(image.q_start);
  const ImageRows k_end = image_rows(image.k_end);
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    const auto put = [&](const ImageRows& rows, __half2 x, float2 decay) {
      *reinterpret_cast<__half2*>(rows.at(i, 4 * lane_index())) = scaled(x, decay);
    };
    put(k_start, k[i], d.from_start[i]);
    put(q_start, q[i], d.from_start[i]);
    put(k_end, k[i], d.to_end[i]);
  }
}

/// sum += 16 rows times 8 n columns over 128 channels.
template <int n>
__device__ void relate_rows(const std::byte (&level)[2][96][row_bytes], int row, int column,
                            float (&sum)[n][4]) {
  const int lane = lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Rows rows{const_cast<std::byte*>(&level[half][0][0])};
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      std::uint32_t a[4];
      ptx::load_matrix_x4(a,
                          ptx::shared_address(rows.at(row + lane % 16, 32 * x + 16 * (lane / 16))));
      std::uint32_t b[4];
      const int other = n == 2 ? 8 * (lane / 16) : 0;
      ptx::load_matrix_x4(
          b, ptx::shared_address(rows.at(column + other + lane % 8, 32 * x + 16 * (lane / 8 % 2))));
      ptx::mma_16816(sum[0], a, b[0], b[1], __half());
      if constexpr (n == 2) ptx::mma_16816(sum[1], a, b[2], b[3], __half());
    }
  }
}

template <int n>
__device__ void store_relations(Storage& w, bool query, int row, int column,
                                const float (&sum)[n][4]) {
  const int lane = lane_index();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + lane / 4 + 8 * h;
    const float factor = query ? 1.0F : w.beta[i];
    Matrix& to = query ? w.B : w.A;
#pragma unroll
    for (int m = 0; m < n; ++m) {
      const int j = column + 8 * m + 2 * (lane % 4);
      to[i][j] = factor * sum[m][2 * h];
      to[i][j + 1] = factor * sum[m][2 * h + 1];
    }
  }
}

__device__ inline void relate_groups(Storage& w) {
  const int warp = warp_index();
  {
    const int tile = warp % 4;  // two of keys, two of queries
    const int column = 16 * (warp / 4);
    float sum[2][4] = {};
    relate_rows(w.u.levels[1], 16 * tile, 64 + column, sum);
    store_relations(w, tile >= 2, 32 + 16 * (tile % 2), column, sum);
  }
  const int pair = warp / 4;
  const int tile = warp / 2 % 2;
  const int column = 8 * (warp % 2);
  float sum[1][4] = {};
  relate_rows(w.u.levels[0], 48 * pair + 16 * tile, 48 * pair + 32 + column, sum);
  store_relations(w, tile == 1, 32 * pair + 16, 32 * pair + column, sum);
}

}  // namespace packattn::cuda::sm90::prepare
