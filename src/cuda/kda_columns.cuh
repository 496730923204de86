// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kda_token.cuh"

// The recurrence of a warp's 8 columns, for the kernels that keep them in registers.
//
//   p = s exp(g)                      decay in place
//   u = sum_k p k,  r = sum_k p q     16 sums of a warp, halved and exchanged five times
//   e = beta (v - u)                  lanes 0 .. 15; o = r + e (k . q) in lanes 16 .. 31
//   s = p + k e
//
// Bits: a column's sums have one order, fixed by K alone.

namespace packattn::cuda::kda_columns {

constexpr int columns = kda_lane_columns;

template <int keys>
using StateTile = float[columns][keys];

template <class S, int count>
struct alignas(sizeof(S) * count < 16 ? sizeof(S) * count : 16) Run {
  S x[count];
};

/// Calls f(k index, column index, offset, whole) for the runs of elements that follow each other in
/// memory: a lane's keys of one column, or its columns of one key.
template <int keys, class F>
__device__ void for_each_element(const KdaParams& p, const KdaPool& pool, int column, F&& f) {
  const int first = lane_index() * keys;
#pragma unroll
  for (int c = 0; c < columns; ++c) {
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      if (first + i < p.key_dim && column + c < p.value_dim) {
        f(c, i, state_offset(p, pool, first + i, column + c));
      }
    }
  }
}

template <int keys, class S>
__device__ void load_tile(const KdaParams& p, const KdaPool& pool, std::int64_t row, int head,
                          int column, StateTile<keys>& s) {
#pragma unroll
  for (int c = 0; c < columns; ++c) {
#pragma unroll
    for (int i = 0; i < keys; ++i) s[c][i] = 0;
  }
  if (row < 0) return;
  const S* from = state_of<S>(pool, row, head);
  const int first = lane_index() * keys;
  if (!pool.vectors) {
    for_each_element<keys>(p, pool, column,
                           [&](int c, int i, std::int64_t at) { s[c][i] = widen(from[at]); });
  } else if (p.v_first) {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      if (first >= p.key_dim || column + c >= p.value_dim) continue;
      const auto run =
          *reinterpret_cast<const Run<S, keys>*>(from + state_offset(p, pool, first, column + c));
#pragma unroll
      for (int i = 0; i < keys; ++i) s[c][i] = widen(run.x[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      if (first + i >= p.key_dim) continue;
      const auto run = *reinterpret_cast<const Run<S, columns>*>(
          from + state_offset(p, pool, first + i, column));
#pragma unroll
      for (int c = 0; c < columns; ++c) s[c][i] = widen(run.x[c]);
    }
  }
}

template <int keys, class S>
__device__ void store_tile(const KdaParams& p, const KdaPool& pool, std::int64_t row, int head,
                           int column, const StateTile<keys>& s) {
  if (row < 0) return;
  S* to = state_of<S>(pool, row, head);
  const int first = lane_index() * keys;
  if (!pool.vectors) {
    for_each_element<keys>(p, pool, column,
                           [&](int c, int i, std::int64_t at) { to[at] = narrow<S>(s[c][i]); });
  } else if (p.v_first) {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      if (first >= p.key_dim || column + c >= p.value_dim) continue;
      Run<S, keys> run;
#pragma unroll
      for (int i = 0; i < keys; ++i) run.x[i] = narrow<S>(s[c][i]);
      *reinterpret_cast<Run<S, keys>*>(to + state_offset(p, pool, first, column + c)) = run;
    }
  } else {
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      if (first + i >= p.key_dim) continue;
      Run<S, columns> run;
#pragma unroll
      for (int c = 0; c < columns; ++c) run.x[c] = narrow<S>(s[c][i]);
      *reinterpret_cast<Run<S, columns>*>(to + state_offset(p, pool, first + i, column)) = run;
    }
  }
}

/// The column whose e and o this lane works out.
__device__ inline int own_column() { return lane_index() / 2 % columns; }

/// A head's gate parameters for the lane's keys.
template <int keys>
struct Gate {
  float bias[keys];
  float rate;
  __device__ Gate(const KdaParams& p, int head) : rate(gate_rate(p, head)) {
    const int first = lane_index() * keys;
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      bias[i] = first + i < p.key_dim ? gate_bias(p, head, first + i) : 0.0F;
    }
  }
};

/// What a lane needs of a token: its keys of q, k and g. Loaded as bits, all at once; `evaluate`
/// then makes numbers of them.
template <int keys>
struct Token {
  RawElements<keys> raw_q, raw_k, raw_g;
  float q[keys], k[keys];
  Decay decay[keys];
  float product;  ///< k . q

  __device__ void load(const KdaParams& p, const KdaSequenceView& s, std::int32_t t, int head) {
    const int first = lane_index() * keys;
    const auto valid = [&](int i) { return first + i < p.key_dim; };
    const auto row = [&](const KdaTensor& x, int h) {
      return [at = token_offset(x, s, t, h) + first](int i) { return at + i; };
    };
    raw_q.load(p.q.data, p.q.dtype, row(p.q, head / p.group), valid);
    raw_k.load(p.k.data, p.k.dtype, row(p.k, head / p.group), valid);
    if (p.gate_per_head) {
      const std::int64_t at = token_offset(p.g, s, t, head);
      raw_g.load(p.g.data, p.g.dtype, [&](int) { return at; }, valid);
    } else {
      raw_g.load(p.g.data, p.g.dtype, row(p.g, head), valid);
    }
  }

  /// Norms, scale, gate kinds.
  __device__ void evaluate(const KdaParams& p, const Gate<keys>& gate) {
    double squares_q = 0;
    double squares_k = 0;
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      q[i] = raw_q.decode(p.q.dtype, i);
      k[i] = raw_k.decode(p.k.dtype, i);
    }
    if (p.l2norm) {
#pragma unroll
      for (int i = 0; i < keys; ++i) {
        squares_q = fma(static_cast<double>(q[i]), static_cast<double>(q[i]), squares_q);
        squares_k = fma(static_cast<double>(k[i]), static_cast<double>(k[i]), squares_k);
      }
      squares_q = warp_sum(squares_q);
      squares_k = warp_sum(squares_k);
    }
    const float factor_q = norm_factor(p.l2norm, squares_q, p.scale);
    const float factor_k = norm_factor(p.l2norm, squares_k, 1);
    const int first = lane_index() * keys;
    product = 0;
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      q[i] *= factor_q;
      k[i] *= factor_k;
      product = fmaf(k[i], q[i], product);
      const float g = log_decay(p, raw_g.decode(p.g.dtype, i), gate.bias[i], gate.rate);
      decay[i] = Decay::of(first + i < p.key_dim ? g : 0.0F);
    }
    product = warp_sum(product);
  }
};

/// v and beta of the lane's own column, as bits.
struct ColumnInputs {
  RawElements<1> v, beta;

  __device__ void load(const KdaParams& p, const KdaSequenceView& s, std::int32_t t, int head,
                       int column) {
    const int own = column + own_column();
    const auto valid = [&](int) { return own < p.value_dim; };
    v.load(p.v.data, p.v.dtype, [&](int) { return token_offset(p.v, s, t, head) + own; }, valid);
    beta.load(
        p.beta.data, p.beta.dtype,
        [&](int) { return token_offset(p.beta, s, t, head) + (p.beta_per_channel ? own : 0); },
        valid);
  }
};

/// 16 sums over the warp at once: of the two halves of a group of lanes each keeps half of the
/// values and sends the other. Lane l ends with sum number l / 2. A value's order of addition does
/// not depend on its number.
template <int half>
__device__ float sums_of_warp(float (&x)[2 * columns]) {
  static_assert(columns == 8);
  const bool upper = (lane_index() & (2 * half)) != 0;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const float sent = upper ? x[i] : x[i + half];
    const float kept = upper ? x[i + half] : x[i];
    x[i] = kept + __shfl_xor_sync(all_lanes, sent, 2 * half);
  }
  if constexpr (half > 1) return sums_of_warp<half / 2>(x);
  else return x[0] + __shfl_xor_sync(all_lanes, x[0], 1);
}

/// One token: the tile moves on, and the lane's share of the output row is stored.
template <int keys>
__device__ void step(const KdaParams& p, const Token<keys>& token, const ColumnInputs& inputs,
                     std::int64_t out, int column, StateTile<keys>& s) {
  float sums[2 * columns] = {};
#pragma unroll
  for (int i = 0; i < keys; ++i) {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      s[c][i] = token.decay[i](s[c][i]);
      sums[c] = fmaf(s[c][i], token.k[i], sums[c]);
      sums[columns + c] = fmaf(s[c][i], token.q[i], sums[columns + c]);
    }
  }
  const float sum = sums_of_warp<columns>(sums);
  const float beta = write_strength(p, inputs.beta.decode(p.beta.dtype, 0));
  const float e = beta * (inputs.v.decode(p.v.dtype, 0) - sum);
  const float o = fmaf(__shfl_xor_sync(all_lanes, e, 16), token.product, sum);
  const int own = column + own_column();
  if (lane_index() >= 16 && lane_index() % 2 == 0 && own < p.value_dim) {
    store_element(p.out, out + own, o);
  }
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    const float written = __shfl_sync(all_lanes, e, 2 * c);
#pragma unroll
    for (int i = 0; i < keys; ++i) s[c][i] = fmaf(token.k[i], written, s[c][i]);
  }
}

/// The warp's column, which the compiler cannot know to be the one it has: addresses made from it
/// are made where they are used.
__device__ inline int taken_anew(int column) { return __shfl_sync(all_lanes, column, 0); }

/// All tokens of one sequence for 8 columns.
template <int keys, class S>
__device__ void run_tokens(const KdaParams& p, const KdaSequenceView& s, int head, int column) {
  StateTile<keys> state;
  load_tile<keys, S>(p, p.initial, s.state.initial, head, column, state);
  const Gate<keys> gate(p, head);
  for (std::int32_t t = 0; t < s.length; ++t) {
    Token<keys> token;
    ColumnInputs inputs;
    token.load(p, s, t, head);
    inputs.load(p, s, t, head, column);
    token.evaluate(p, gate);
    step<keys>(p, token, inputs, token_offset(p.out, s, t, head), column, state);
    if (p.columns.data != nullptr) {
      const std::int64_t slot = read_slot(p.columns, s.n, t);
      // Taken anew: addresses of 64 elements kept from token to token would fill the registers.
      const int at = taken_anew(column);
      if (slot != p.null_slot) store_tile<keys, S>(p, p.final, slot, head, at, state);
    }
  }
  store_tile<keys, S>(p, p.final, s.state.final, head, taken_anew(column), state);
}

}  // namespace packattn::cuda::kda_columns
