// SPDX-License-Identifier: Apache-2.0
// sm90/kda_chunk, first part: what a chunk of 64 tokens has to say before any state is known, of
// all chunks and heads at once. docs/kernels/sm90-kda.md explains and measures it.
//
//   D_ij[d] = exp(g_{j+1} + .. + g_i), a product of single decays, all at most 1
//   A_ij = beta_i k_i . (k_j D_ij) for j < i, B_ij = q_i . (k_j D_ij) for j <= i
//   M = (I + A)^-1
//
// A and B are found level by level: in blocks of 2 L tokens, rows of the second half against
// columns of the first, D_ij = D_im D_mj with m the end of the first half. Both factors are at most
// 1 whatever the gates, m is in the past of every row, and going from L to 2 L is one product a
// token. L = 1, 2, 4, 8 within a warp, 16 and 32 between warps.
//
//   8 warps, each 16 tokens x 64 channels, a lane two channels; an image a block, two blocks at
//   work load q, k, g -> decays, norms | L = 1 2 4 8 | L = 16 32, rows of the image | invert 16 x
//   16 | M_10 = -M_11 A_10 M_00 twice, in tf32 parts | M beta in two parts, B to the image
//
// Reads 48 KB, writes 73 KB a chunk and head.
#include "cuda/kda_token.cuh"
#include "cuda/sm90/kda_chunk.h"
#include "cuda/sm90/ptx.cuh"

namespace packattn::cuda::sm90 {
namespace {

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
__device__ __half2 half_pair(float x, float y) { return __floats2half2_rn(x, y); }
__device__ std::uint32_t bits_of(__half2 x) { return reinterpret_cast<std::uint32_t&>(x); }

/// What a lane has of its group: two channels of 16 tokens.
struct Lane {
  int group, half, channel;
  __device__ Lane()
      : group(warp_index() / 2), half(warp_index() % 2), channel(64 * half + 2 * lane_index()) {}
};

/// The lane's pairs of k or q, as they lie in memory.
__device__ void load_pairs(const KdaParams& p, const KdaTensor& x, const Chunk& chunk,
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
__device__ void load_gates(const KdaParams& p, const Chunk& chunk, const Lane& lane, int head,
                           float2 (&raw)[group_tokens]) {
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
__device__ float softplus(float r) {
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
__device__ float row_factor(bool l2norm, float squares) {
  if (l2norm) return rsqrtf(squares + 1e-6F);
  if (squares == 0) return 1;
  int exponent;
  frexpf(squares, &exponent);  // squares < 2^exponent
  return ldexpf(1.0F, -((exponent + 1) >> 1));
}

/// Factors of the warp's rows; what follows from them goes to the image and to beta.
__device__ void find_factors(const KdaParams& p, const Lane& lane, KdaImage& image, Storage& w) {
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

// ---- A and B within a group -----------------------------------------------------------------

/// Products of single decays around each token: from the start of its block of L tokens to itself,
/// and from behind itself to the end of the block.
struct Products {
  float2 from_start[group_tokens];
  float2 to_end[group_tokens];
};

__device__ float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
__device__ __half2 scaled(__half2 x, float2 decay) {
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

__device__ void put_rows(const Rows& rows, int first, const __half2 (&x)[group_tokens],
                         const float2 (&decay)[group_tokens]) {
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) {
    *reinterpret_cast<__half2*>(rows.at(first + i, 4 * lane_index())) = scaled(x[i], decay[i]);
  }
}

__device__ void extend(float2 (&decay)[group_tokens], float2 by) {
#pragma unroll
  for (float2& x : decay) x = times(x, by);
}

/// Operands of the levels of 16 and 32, then of the whole chunk: the last go to the image.
__device__ void spread(const Lane& lane, const __half2 (&k)[group_tokens],
                       const __half2 (&q)[group_tokens], Products& d, KdaImage& image, Storage& w) {
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

__device__ void relate_groups(Storage& w) {
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

// ---- the triangular system ------------------------------------------------------------------

/// Inverse of the unit lower triangle of 16 tokens by forward substitution, a lane a column. The
/// other lanes clear what lies right of the upper block of a pair: the merges read it.
__device__ void invert_block(Storage& w, int block) {
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
__device__ void merge_blocks(Storage& w) {
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

// ---- a chunk --------------------------------------------------------------------------------

/// The block's image. Kept in two registers from the start to the end, its address would be two too
/// many.
__device__ KdaImage& image_of(const KdaWave& wave) {
  int block = static_cast<int>(block_index());
  ptx::forget(block);
  return wave.images[block];
}

template <class T>
__device__ void prepare_chunk(const KdaParams& p, const KdaWave& wave, const Chunk& chunk, int head,
                              Storage& w) {
  const Lane lane;
  __half2 k[group_tokens];
  Products d;
  {
    std::uint32_t raw_k[group_tokens];
    std::uint32_t raw_q[group_tokens];
    RawElements<1> beta{};
    if (thread_index() < chunk.count) {
      beta.load(
          p.beta.data, p.beta.dtype,
          [&](int) { return token_offset(p.beta, chunk.s, chunk.first + thread_index(), head); },
          [](int) { return true; });
    }
    load_gates(p, chunk, lane, head, d.from_start);
    load_pairs(p, p.k, chunk, lane, head / p.group, raw_k);
    load_pairs(p, p.q, chunk, lane, head / p.group, raw_q);
    const float2 sum = decays<T>(p, chunk, lane, head, d.from_start);
    *reinterpret_cast<float2*>(&w.gates[lane.group][lane.channel]) = sum;
    if (thread_index() < tokens) {
      const bool valid = thread_index() < chunk.count;
      w.beta[thread_index()] = valid ? write_strength(p, beta.decode(p.beta.dtype, 0)) : 0.0F;
    }
    sum_products<T>(lane, raw_k, raw_q, w);
    __syncthreads();
    find_factors(p, lane, image_of(wave), w);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < group_tokens; ++i) {
      const float2 key = widen_pair<T>(raw_k[i]);
      const float2 query = widen_pair<T>(raw_q[i]);
      const float* factor = w.factors[warp_index()];
      k[i] = half_pair(key.x * factor[i], key.y * factor[i]);
      w.q[warp_index()][i][lane_index()] =
          half_pair(query.x * factor[group_tokens + i], query.y * factor[group_tokens + i]);
      d.to_end[i] = {1, 1};
    }
  }
  if (thread_index() < 128) {
    const int c = thread_index();
    image_of(wave).decay[c] = expf(w.gates[0][c] + w.gates[1][c] + (w.gates[2][c] + w.gates[3][c]));
  }
  const Rows even{&w.u.own[warp_index()][0][0][0]};
  const Rows odd{&w.u.own[warp_index()][1][0][0]};
  const auto found = [&](int level) -> float4& {
    return w.partial[warp_index()][level][lane_index()];
  };
  relate_level<1>(even, k, w.q[warp_index()], d, found(0));
  double_blocks<1>(d);
  relate_level<2>(odd, k, w.q[warp_index()], d, found(1));
  double_blocks<2>(d);
  relate_level<4>(even, k, w.q[warp_index()], d, found(2));
  double_blocks<4>(d);
  relate_level<8>(odd, k, w.q[warp_index()], d, found(3));
  double_blocks<8>(d);
  *reinterpret_cast<float2*>(&w.totals[lane.group][lane.channel]) = d.from_start[group_tokens - 1];
  __syncthreads();  // beta, totals, partial sums; the operands have been read
  __half2 q[group_tokens];
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) q[i] = w.q[warp_index()][i][lane_index()];
  spread(lane, k, q, d, image_of(wave), w);
  __syncthreads();
  if (lane.half == 0) {
    store_level<1>(w, lane, 0);
    store_level<2>(w, lane, 1);
  } else {
    store_level<4>(w, lane, 2);
    store_level<8>(w, lane, 3);
  }
  relate_groups(w);
  __syncthreads();
  if (warp_index() < 4) {
    invert_block(w, warp_index());
  } else {
    const int row = thread_index() % 64;
    const int first = (thread_index() - 128) / 64 * 32;
#pragma unroll
    for (int x = 0; x < 32; x += 8) {
      Eight(w.B, row, first + x).put(image_of(wave).read, row, first + x);
    }
  }
  __syncthreads();
  merge_blocks(w);
  __syncthreads();
  const int row = thread_index() / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = 8 * (thread_index() % 4 + 4 * half);
    Eight x(w.u.solve.M, row, first);
#pragma unroll
    for (int n = 0; n < 8; ++n) x.x[n] *= w.beta[first + n];
    x.put(image_of(wave).solve, row, first);
    x.put(image_of(wave).solve_rest, row, first);
  }
}

/// The sequence whose images include number `slot`.
__device__ std::int32_t sequence_of(const KdaWave& wave, std::int32_t count, std::int32_t slot) {
  std::int32_t low = 0;
  std::int32_t high = count;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (wave.bases[middle] <= slot) low = middle;
    else high = middle;
  }
  return low;
}

template <class T>
__global__ void __launch_bounds__(threads, 2)
    kda_prepare_kernel(const __grid_constant__ KdaParams p, const __grid_constant__ KdaWave wave) {
  auto& w = *shared_memory<Storage>();
  const auto slot = static_cast<std::int32_t>(block_index() / wave.heads);
  const auto place = static_cast<int>(block_index() % wave.heads);
  if (slot >= wave.bases[p.count]) return;
  const std::int32_t n = sequence_of(wave, p.count, slot);
  Chunk chunk{kda_sequence(p, n), (wave.first + slot - wave.bases[n]) * tokens, 0};
  chunk.count = min(tokens, chunk.s.length - chunk.first);
  if (chunk.s.state.skipped != 0) return;
  prepare_chunk<T>(p, wave, chunk, wave.first_head + place, w);
}

/// Chunks of the wave: exclusive sums over the sequences, in one block.
__global__ void __launch_bounds__(256, 1)
    kda_wave_kernel(const __grid_constant__ KdaParams p, const __grid_constant__ KdaWave wave) {
  __shared__ std::int32_t warp_sums[8];
  __shared__ std::int32_t before;
  if (thread_index() == 0) before = 0;
  for (std::int32_t base = 0; base <= p.count; base += 256) {
    const std::int32_t n = base + thread_index();
    std::int32_t own = 0;
    if (n < p.count) {
      const std::int32_t chunks = (kda_sequence(p, n).length + tokens - 1) / tokens;
      own = min(max(chunks - wave.first, 0), wave.count);
    }
    std::int32_t sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t other = __shfl_up_sync(all_lanes, sum, step);
      if (lane_index() >= step) sum += other;
    }
    if (lane_index() == 31) warp_sums[warp_index()] = sum;
    __syncthreads();
    std::int32_t start = before;
    for (int warp = 0; warp < warp_index(); ++warp) start += warp_sums[warp];
    if (n <= p.count) wave.bases[n] = start + sum - own;
    __syncthreads();
    if (thread_index() == 255) before = start + sum;
    __syncthreads();
  }
}

}  // namespace

void launch_kda_wave(const KdaParams& p, const KdaWave& wave, cudaStream_t stream) {
  launch("sm90/kda_chunk: wave", kda_wave_kernel, 1, 256, 0, stream, p, wave);
}

void launch_kda_prepare(const KdaParams& p, const KdaWave& wave, cudaStream_t stream) {
  const std::int64_t blocks = wave.bound * wave.heads;
  if (blocks == 0) return;
  const auto start = [&](auto kernel) {
    launch("sm90/kda_chunk: prepare", kernel, blocks, threads, sizeof(Storage), stream, p, wave);
  };
  if (p.q.dtype == DType::bf16) start(kda_prepare_kernel<__nv_bfloat16>);
  else start(kda_prepare_kernel<__half>);
}

}  // namespace packattn::cuda::sm90
