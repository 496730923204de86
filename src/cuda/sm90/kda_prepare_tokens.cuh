// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kda_token.cuh"
#include "cuda/sm90/kda_chunk.h"
#include "cuda/sm90/ptx.cuh"

// kda_prepare: its shared memory, and what it makes of single tokens: loads, decays, norms.

namespace packattn::cuda::sm90::prepare {

constexpr int threads = 256;
constexpr int tokens = KdaChunkShape::tokens;
constexpr int group_tokens = 16;  // of a pair of warps; a lane has two channels of all of them
constexpr int pitch = 68;         // of a row of A, B, M: lanes down and along meet few conflicts

using Matrix = float[tokens][pitch];

/// Rows of 64 channels as wgmma reads them: 128 bytes, 16-byte words exchanged by the row.
struct ImageRows {
  std::byte* base;
  __device__ std::byte* at(int row, int byte) const {
    return base + row * 128 + (byte ^ ((row & 7) << 4));
  }
};

/// Rows of 64 channels for ldmatrix: eight of them, one below the other, fill all banks, and the
/// place of each is a constant from the first one's.
constexpr int row_bytes = 144;
struct Rows {
  std::byte* base;
  __device__ std::byte* at(int row, int byte) const { return base + row * row_bytes + byte; }
};

struct Storage {
  union {
    std::byte levels[2][2][96][row_bytes];  ///< operands between groups: [level][half of K][row]
    std::byte own[8][2][24][row_bytes];     ///< operands within a group, of one warp each
    struct {
      Matrix M;
      Matrix product;
    } solve;
  } u;
  union {
    Matrix A;
    __half2 q[8][group_tokens][32];  ///< a lane's queries, until A is written
  };
  Matrix B;
  float4 partial[8][4][32];  ///< what a warp found within its group: [warp][level][lane]
  float sums[4][2][48];      ///< squares of k and of q, products q_i k_i: [group][half]
  float factors[8][32];      ///< of a warp's keys and queries
  float totals[4][128];      ///< decay of a group
  float gates[4][128];       ///< sum of its gates
  float beta[tokens];
};

struct Chunk {
  KdaSequenceView s;
  std::int32_t first;  ///< token of the sequence
  int count;
};

// ---- loads ----------------------------------------------------------------------------------

template <class T>
__device__ float2 widen_pair(std::uint32_t x) {
  if constexpr (std::is_same_v<T, __half>) return __half22float2(reinterpret_cast<__half2&>(x));
  else return __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(x));
}
__device__ inline __half2 half_pair(float x, float y) { return __floats2half2_rn(x, y); }
__device__ inline std::uint32_t bits_of(__half2 x) { return reinterpret_cast<std::uint32_t&>(x); }

/// What a lane has of its group: two channels of 16 tokens.
struct Lane {
  int group, half, channel;
  __device__ Lane()
      : group(warp_index() / 2), half(warp_index() % 2), channel(64 * half + 2 * lane_index()) {}
};

/// The lane's pairs of k or q, as they lie in memory.
__device__ inline void load_pairs(const KdaParams& p, const KdaTensor& x, const Chunk& chunk,
                                  const Lane& lane, int head, std::uint32_t (&raw)[group_tokens]) {
  const auto* at = static_cast<const std::uint16_t*>(x.data) + lane.channel +
                   token_offset(x, chunk.s, chunk.first + group_tokens * lane.group, head);
  const int valid = lane.channel < p.key_dim ? chunk.count - group_tokens * lane.group : 0;
#pragma unroll
  for (int i = 0; i < group_tokens; ++i, at += x.token_stride) {
    raw[i] = i < valid ? __ldg(reinterpret_cast<const unsigned*>(at)) : 0U;
  }
}

/// The lane's gates as they lie in memory: two fp32, or two 16-bit elements in the bits of x.
__device__ inline void load_gates(const KdaParams& p, const Chunk& chunk, const Lane& lane,
                                  int head, float2 (&raw)[group_tokens]) {
  const KdaTensor& x = p.g;
  const std::int64_t base =
      token_offset(x, chunk.s, chunk.first + group_tokens * lane.group, head) +
      (p.gate_per_head ? 0 : lane.channel);
  const int valid = lane.channel < p.key_dim ? chunk.count - group_tokens * lane.group : 0;
  if (x.dtype == DType::f32) {
    const auto* at = static_cast<const float*>(x.data) + base;
    const int second = p.gate_per_head ? 0 : 1;
#pragma unroll
    for (int i = 0; i < group_tokens; ++i, at += x.token_stride) {
      raw[i] = i < valid ? float2{__ldg(at), __ldg(at + second)} : float2{0, 0};
    }
    return;
  }
  const auto* at = static_cast<const std::uint16_t*>(x.data) + base;
#pragma unroll
  for (int i = 0; i < group_tokens; ++i, at += x.token_stride) {
    std::uint32_t bits = 0;
    if (i < valid) {
      bits = p.gate_per_head ? __ldg(at) * 0x10001U : __ldg(reinterpret_cast<const unsigned*>(at));
    }
    raw[i].x = __uint_as_float(bits);
  }
}

/// ln(1 + e^r). The fast logarithm is 1e-7 off near 1; where that is much of the result, a series.
__device__ inline float softplus(float r) {
  constexpr float log2e = 1.44269504F;
  constexpr float ln2 = 0.693147181F;
  const float t = ptx::exp2_approx(r * log2e);
  const float series = t * fmaf(t, fmaf(t, fmaf(t, -0.25F, 1.0F / 3), -0.5F), 1.0F);
  const float logarithm = ln2 * __log2f(1 + t);
  return r > 20 ? r : t < 0.03F ? series : logarithm;
}

/// Gates become decays of single tokens; returns the sum of the gates.
template <class T>
__device__ float2 decays(const KdaParams& p, const Chunk& chunk, const Lane& lane, int head,
                         float2 (&decay)[group_tokens]) {
  constexpr float log2e = 1.44269504F;
  const int valid = lane.channel < p.key_dim ? chunk.count - group_tokens * lane.group : 0;
  float2 bias{0, 0};
  if (valid > 0) {
    bias = {gate_bias(p, head, lane.channel), gate_bias(p, head, lane.channel + 1)};
  }
  const float rate = gate_rate(p, head);
  if (p.g.dtype != DType::f32) {
#pragma unroll
    for (float2& x : decay) x = widen_pair<T>(__float_as_uint(x.x));
  }
  if (p.gate == GateKind::bounded) {
    const float slope = -rate * log2e;
    const float2 shift{slope * bias.x, slope * bias.y};
    const auto of = [&](float raw, float offset) {
      return __fdividef(p.lower_bound, 1 + ptx::exp2_approx(fmaf(raw, slope, offset)));
    };
#pragma unroll
    for (int i = 0; i < group_tokens; ++i) {
      decay[i] = {of(decay[i].x, shift.x), of(decay[i].y, shift.y)};
    }
  } else if (p.gate == GateKind::softplus) {
#pragma unroll
    for (int i = 0; i < group_tokens; ++i) {
      decay[i] = {-rate * softplus(decay[i].x + bias.x), -rate * softplus(decay[i].y + bias.y)};
    }
  }
  float2 sum{0, 0};
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    const float2 g = i < valid ? decay[i] : float2{0, 0};
    sum.x += g.x;
    sum.y += g.y;
    decay[i] = {ptx::exp2_approx(g.x * log2e), ptx::exp2_approx(g.y * log2e)};
  }
  return sum;
}

// ---- norms ----------------------------------------------------------------------------------

/// Sums of `count` values over a warp: lane l ends with the sum of x[l % count].
template <int count>
__device__ float transposed_sum(const float (&x)[count]) {
  if constexpr (count == 1) {
    return x[0];
  } else {
    constexpr int step = count / 2;
    const bool upper = (lane_index() & step) != 0;
    float half[step];
#pragma unroll
    for (int i = 0; i < step; ++i) {
      half[i] = (upper ? x[i + step] : x[i]) +
                __shfl_xor_sync(all_lanes, upper ? x[i] : x[i + step], step);
    }
    return transposed_sum(half);
  }
}

/// Sums over the warp's channels of what `f` makes of a token's pair of channels.
template <class F>
__device__ void sum_tokens(float* to, F&& f) {
  float x[group_tokens];
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) x[i] = f(i);
  float sum = transposed_sum(x);
  sum += __shfl_xor_sync(all_lanes, sum, group_tokens);
  if (lane_index() < group_tokens) to[lane_index()] = sum;
}

/// Squares of k and of q, products q_i k_i. One after the other: 16 registers serve all three.
template <class T>
__device__ void sum_products(const Lane& lane, const std::uint32_t (&k)[group_tokens],
                             const std::uint32_t (&q)[group_tokens], Storage& w) {
  const auto dot = [](float2 a, float2 b) { return fmaf(a.x, b.x, a.y * b.y); };
  float* sums = w.sums[lane.group][lane.half];
  sum_tokens(sums, [&](int i) { return dot(widen_pair<T>(k[i]), widen_pair<T>(k[i])); });
  sum_tokens(sums + 16, [&](int i) { return dot(widen_pair<T>(q[i]), widen_pair<T>(q[i])); });
  sum_tokens(sums + 32, [&](int i) { return dot(widen_pair<T>(k[i]), widen_pair<T>(q[i])); });
}

/// The factor that brings a row to length 1, or, without normalisation, the power of two that
/// brings it to at most 1.
__device__ inline float row_factor(bool l2norm, float squares) {
  if (l2norm) return rsqrtf(squares + 1e-6F);
  if (squares == 0) return 1;
  int exponent;
  frexpf(squares, &exponent);  // squares < 2^exponent
  return ldexpf(1.0F, -((exponent + 1) >> 1));
}

/// Factors of the warp's rows; what follows from them goes to the image and to beta.
__device__ inline void find_factors(const KdaParams& p, const Lane& lane, KdaImage& image,
                                    Storage& w) {
  const int row = lane_index() % group_tokens;
  const bool is_key = lane_index() < group_tokens;
  const int token = group_tokens * lane.group + row;
  const float factor = row_factor(
      p.l2norm, w.sums[lane.group][0][lane_index()] + w.sums[lane.group][1][lane_index()]);
  w.factors[warp_index()][lane_index()] = factor;
  const float other = __shfl_xor_sync(all_lanes, factor, group_tokens);
  if (lane.half != 0) return;
  if (is_key) {
    if (!p.l2norm) w.beta[token] /= factor * factor;
    image.value_scale[token] = p.l2norm ? 1.0F : factor;
    const float product = w.sums[lane.group][0][32 + row] + w.sums[lane.group][1][32 + row];
    w.B[token][token] = product * factor * other;
  } else {
    image.out_scale[token] = static_cast<float>(p.scale) / (p.l2norm ? 1.0F : factor);
  }
}

}  // namespace packattn::cuda::sm90::prepare
