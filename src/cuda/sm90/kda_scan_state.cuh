// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kda_token.cuh"
#include "cuda/sm90/kda_chunk.h"
#include "cuda/sm90/ptx.cuh"

// kda_scan: its work and shared memory, the state in registers, rows of v and out, scales.

namespace packattn::cuda::sm90::scan {

constexpr int tokens = KdaChunkShape::tokens;
constexpr int columns = KdaChunkShape::columns;
constexpr int stages = 2;

/// What a block works on. It lies in shared memory: beside a state there are no registers for it.
struct Work {
  KdaSequenceView s;
  int head;
  int column;                ///< first of the block's
  std::int32_t first, last;  ///< chunks of this wave
  std::int64_t slot;         ///< image of the first of them
  std::int64_t states;       ///< where the states before the sequence's chunks begin
};

/// The first of a warp's 16 columns of the state.
__device__ inline int warp_column(const Work& work) { return work.column + 16 * warp_index(); }

template <int groups>
struct Storage {
  KdaImage images[stages];
  std::byte values[2][4 * groups][tokens * 32];  ///< a warp's 16 columns of v, then of out
  std::uint64_t full[stages];
  std::uint64_t empty[stages];
  Work work;
};

/// Where a lane stands in a fragment: rows `row` and row + 8 are columns of the state, `pair` and
/// the next one channels or tokens in every eight.
__device__ inline int lane_row() { return lane_index() / 4; }
__device__ inline int lane_pair() { return 2 * (lane_index() % 4); }

__device__ inline std::uint32_t half_bits(float x, float y) {
  const __half2 pair = __floats2half2_rn(x, y);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
template <class T>
__device__ float2 widen_pair(std::uint32_t x) {
  if constexpr (std::is_same_v<T, __half>) return __half22float2(reinterpret_cast<__half2&>(x));
  else return __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(x));
}
template <class T>
__device__ std::uint32_t narrow_pair(float x, float y) {
  if constexpr (std::is_same_v<T, __half>) {
    return half_bits(x, y);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

// ---- the state ------------------------------------------------------------------------------

using State = float[64];  // [16 channel octets][2 rows][2 channels]

/// Calls f(offset in a head's state, register, next register) for pairs of channels that exist.
template <class F>
__device__ void for_each_pair(const KdaParams& p, const KdaPool& pool, int column, State& S,
                              F&& f) {
#pragma unroll
  for (int octet = 0; octet < 16; ++octet) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = 8 * octet + lane_pair();
      const int v = column + lane_row() + 8 * h;
      float* at = &S[4 * octet + 2 * h];
      if (k < p.key_dim && v < p.value_dim) f(state_offset(p, pool, k, v), at[0], at[1]);
    }
  }
}

template <class E>
__device__ void load_elements(const KdaParams& p, std::int64_t row, const Work& work, State& S) {
  const E* base = state_of<E>(p.initial, row, work.head);
  const std::int64_t next = p.v_first ? 1 : p.initial.outer_stride;
  for_each_pair(p, p.initial, warp_column(work), S, [&](std::int64_t at, float& x, float& y) {
    if constexpr (std::is_same_v<E, float>) {
      if (p.v_first && p.initial.vectors) {
        const float2 pair = *reinterpret_cast<const float2*>(base + at);
        x = pair.x;
        y = pair.y;
        return;
      }
    }
    x = widen(base[at]);
    y = widen(base[at + next]);
  });
}

template <class E>
__device__ void store_elements(const KdaParams& p, const KdaPool& pool, std::int64_t row,
                               const Work& work, float unscale, State& S) {
  E* base = state_of<E>(pool, row, work.head);
  const std::int64_t next = p.v_first ? 1 : pool.outer_stride;
  int column = warp_column(work);
  ptx::forget(column);  // 32 addresses kept in registers over the loop would not fit
  for_each_pair(p, pool, column, S, [&](std::int64_t at, float& x, float& y) {
    if constexpr (std::is_same_v<E, float>) {
      if (p.v_first && pool.vectors) {
        *reinterpret_cast<float2*>(base + at) = {x * unscale, y * unscale};
        return;
      }
    }
    base[at] = narrow<E>(x * unscale);
    base[at + next] = narrow<E>(y * unscale);
  });
}

__device__ inline void store_state(const KdaParams& p, const KdaPool& pool, std::int64_t row,
                                   const Work& work, float unscale, State& S) {
  if (row < 0 || row >= pool.rows) return;
  if (pool.bf16) store_elements<BFloat16>(p, pool, row, work, unscale, S);
  else store_elements<float>(p, pool, row, work, unscale, S);
}

/// A thread's words of the state between two waves.
__device__ inline float4* carried(const KdaParams& p, const KdaWave& wave, const Work& work) {
  const int parts = (p.value_dim + columns - 1) / columns;
  const std::int64_t unit =
      (std::int64_t{work.s.n} * wave.heads + work.head - wave.first_head) * parts +
      warp_column(work) / columns;
  return reinterpret_cast<float4*>(wave.carry) + unit * 16 * 128 + thread_index() % 128;
}

__device__ inline void load_state(const KdaParams& p, const KdaWave& wave, const Work& work,
                                  State& S) {
#pragma unroll
  for (float& x : S) x = 0;
  if (work.first > 0) {
    const float4* from = carried(p, wave, work);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float4 x = from[i * 128];
      S[4 * i] = x.x, S[4 * i + 1] = x.y, S[4 * i + 2] = x.z, S[4 * i + 3] = x.w;
    }
    return;
  }
  const std::int64_t row = work.s.state.initial;
  if (row < 0) return;
  if (p.initial.bf16) load_elements<BFloat16>(p, row, work, S);
  else load_elements<float>(p, row, work, S);
}

__device__ inline void keep_state(const KdaParams& p, const KdaWave& wave, const Work& work,
                                  float unscale, State& S) {
  if (work.last * tokens >= work.s.length) {
    store_state(p, p.final, work.s.state.final, work, unscale, S);
    return;
  }
  float4* to = carried(p, wave, work);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    to[i * 128] = {S[4 * i] * unscale, S[4 * i + 1] * unscale, S[4 * i + 2] * unscale,
                   S[4 * i + 3] * unscale};
  }
}

// ---- rows of v and out ----------------------------------------------------------------------

/// Word `word` (of two) of a token's 16 columns: eight tokens one below the other meet no conflict.
__device__ inline std::uint32_t value_address(const std::byte* values, int token, int word) {
  return ptx::shared_address(values) + token * 32 + ((word ^ (token >> 2 & 1)) << 4);
}

__device__ inline void load_values(const KdaParams& p, const Work& work, std::int32_t chunk,
                                   const std::byte* values) {
  const std::int32_t first = chunk * tokens;
  const auto* data = static_cast<const std::uint16_t*>(p.v.data);
  const std::int64_t base = token_offset(p.v, work.s, first, work.head) + warp_column(work);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = lane_index() / 2 + 16 * i;
    const int word = lane_index() % 2;
    const bool valid = first + token < work.s.length && warp_column(work) + 8 * word < p.value_dim;
    ptx::copy_async_16(value_address(values, token, word),
                       data + (valid ? base + token * p.v.token_stride + 8 * word : 0), valid);
  }
  ptx::copy_async_commit();
}

/// Where lane's row of the four 8 x 8 matrices at tokens 16 i lies.
__device__ inline std::uint32_t matrix_address(const std::byte* values, int i) {
  const int lane = lane_index();
  return value_address(values, 16 * i + 8 * (lane / 16) + lane % 8, lane / 8 % 2);
}

template <class T>
__device__ void store_out(const KdaParams& p, const Work& work, std::int32_t chunk,
                          const float (&o)[32], const float* scale, float unscale,
                          std::byte* values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t r[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int octet = 2 * i + m / 2;
      const float2 by = *reinterpret_cast<const float2*>(scale + 8 * octet + lane_pair());
      const float* x = &o[4 * octet + 2 * (m % 2)];
      r[m] = narrow_pair<T>(x[0] * (by.x * unscale), x[1] * (by.y * unscale));
    }
    ptx::store_matrix_x4_transposed(matrix_address(values, i), r);
  }
  __syncwarp();
  const std::int32_t first = chunk * tokens;
  auto* data = static_cast<std::uint16_t*>(p.out.data);
  const std::int64_t base = token_offset(p.out, work.s, first, work.head) + warp_column(work);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = lane_index() / 2 + 16 * i;
    const int word = lane_index() % 2;
    if (first + token >= work.s.length || warp_column(work) + 8 * word >= p.value_dim) continue;
    *reinterpret_cast<uint4*>(data + base + token * p.out.token_stride + 8 * word) =
        ptx::load_shared_16(value_address(values, token, word));
  }
}

// ---- scales ---------------------------------------------------------------------------------

__device__ inline float power_of_two(int x) {
  return __uint_as_float(static_cast<unsigned>(x + 127) << 23);
}

/// The largest magnitude of a warp's values, as bits, and its exponent: below 2^exponent.
__device__ inline int exponent_of(float largest) {
  const unsigned bits = __reduce_max_sync(all_lanes, __float_as_uint(largest));
  return static_cast<int>(bits >> 23) - 126;
}

constexpr int lowest_exponent = -40;
constexpr int highest_exponent = 100;

/// Exponent by which a warp's columns are scaled in a chunk, so that fp16 holds them: from the
/// state before the chunk and the chunk's first token, both in the past of every row.
template <class T>
__device__ int scale_of(const State& S, int exponent, std::uint32_t first_low,
                        std::uint32_t first_high, float value_scale) {
  float largest = 0;
#pragma unroll
  for (float x : S) largest = fmaxf(largest, fabsf(x));
  largest *= power_of_two(exponent);
  if (lane_pair() == 0) {
    const float v = fmaxf(fabsf(widen_pair<T>(first_low).x), fabsf(widen_pair<T>(first_high).x));
    largest = fmaxf(largest, v * value_scale);
  }
  const int own = (exponent_of(largest) + 3) & ~3;
  return min(max(own, lowest_exponent), highest_exponent);
}

template <int count>
__device__ void multiply(float (&x)[count], float by) {
#pragma unroll
  for (float& each : x) each *= by;
}

}  // namespace packattn::cuda::sm90::scan
