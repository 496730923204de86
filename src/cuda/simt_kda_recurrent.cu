// SPDX-License-Identifier: Apache-2.0
// simt/kda_recurrent: the recurrence of KDA, every option, any card from compute capability 8.0.
//
// A warp holds 8 columns of one value head's state in registers, from the first token to the last;
// lane l holds rows l n .. l n + n of each (n = 2, 4, 8 for K up to 64, 128, 256). Warps never
// meet, so the state is read and written once, and what a call of single tokens costs is that
// traffic.
//
//   p = s exp(g)                      decay in place
//   u = sum_k p k,  r = sum_k p q     16 sums of a warp, halved and exchanged five times
//   e = beta (v - u)                  lanes 0 .. 15; o = r + e (k . q) in lanes 16 .. 31
//   s = p + k e
//
// Bits: a column's sums have one order, fixed by K alone.
#include "cuda/kda_token.cuh"

namespace packattn::cuda {
namespace {

constexpr int warps = 4;
constexpr int columns = kda_lane_columns;

template <int keys>
using Tile = float[columns][keys];

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
                          int column, Tile<keys>& s) {
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
                           int column, const Tile<keys>& s) {
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
__device__ int own_column() { return lane_index() / 2 % columns; }

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
                     std::int64_t out, int column, Tile<keys>& s) {
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
__device__ int taken_anew(int column) { return __shfl_sync(all_lanes, column, 0); }

__device__ std::int64_t read_slot(const KdaSlotView& slots, std::int32_t n, std::int64_t column) {
  const std::int64_t at = n * slots.sequence_stride + column * slots.column_stride;
  return slots.wide ? static_cast<const std::int64_t*>(slots.data)[at]
                    : static_cast<const std::int32_t*>(slots.data)[at];
}

/// All tokens of one sequence for 8 columns.
template <int keys, class S>
__device__ void run_tokens(const KdaParams& p, const KdaSequenceView& s, int head, int column) {
  Tile<keys> state;
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

/// A single token for columns [first, last): what belongs to all of them is worked out once.
template <int keys, class S>
__device__ void run_token(const KdaParams& p, const KdaSequenceView& s, int head, int first,
                          int last) {
  Token<keys> token;
  token.load(p, s, 0, head);
  ColumnInputs inputs;
  inputs.load(p, s, 0, head, first);
  Tile<keys> state;
  load_tile<keys, S>(p, p.initial, s.state.initial, head, first, state);
  token.evaluate(p, Gate<keys>(p, head));
  const std::int64_t out = token_offset(p.out, s, 0, head);
  for (int column = first; column < last; column += columns) {
    if (column > first) {
      inputs.load(p, s, 0, head, column);
      load_tile<keys, S>(p, p.initial, s.state.initial, head, column, state);
    }
    step<keys>(p, token, inputs, out, column, state);
    store_tile<keys, S>(p, p.final, s.state.final, head, column, state);
  }
}

/// `span` columns of one value head a warp: more than 8 where there is plenty of work, because the
/// token's own work is then done once for all of them.
template <int keys, class S>
__global__ void __launch_bounds__(32 * warps, keys < 8 ? 3 : 2)
    kda_recurrent_kernel(const __grid_constant__ KdaParams p, const int span, const int parts) {
  const std::int64_t per_position = static_cast<std::int64_t>(p.heads) * parts;
  const std::int64_t units = kda_positions(p) * per_position;
  for (std::int64_t unit = block_index() * warps + warp_index(); unit < units;
       unit += block_count() * warps) {
    const auto within = static_cast<int>(unit % per_position);
    const int head = within / parts;
    const int first = within % parts * span;
    const int last = min(first + span, p.value_dim);
    KdaSequenceView s;
    if (!take_sequence<S>(p, unit / per_position, head, first, last, lane_index(), 32, s)) continue;
    if (s.length == 1 && p.columns.data == nullptr) {
      run_token<keys, S>(p, s, head, first, last);
    } else {
      for (int column = first; column < last; column += columns) {
        run_tokens<keys, S>(p, s, head, column);
      }
    }
  }
}

/// Warps that keep a device busy, at 16 a multiprocessor of the largest ones.
constexpr std::int64_t plenty = 8192;

template <int keys, class S>
void launch_sizes(const KdaParams& p, cudaStream_t stream) {
  const std::int64_t heads = kda_positions(p) * p.heads;
  if (heads == 0) return;
  const auto parts_of = [&](int span) { return (p.value_dim + span - 1) / span; };
  int span = columns;
  while (span < 8 * columns && heads * parts_of(2 * span) >= plenty) span *= 2;
  const std::int64_t units = heads * parts_of(span);
  const std::int64_t blocks = std::min<std::int64_t>((units + warps - 1) / warps, INT32_MAX);
  launch("simt/kda_recurrent", kda_recurrent_kernel<keys, S>, blocks, 32 * warps, 0, stream, p,
         span, parts_of(span));
}

template <class S>
void launch_types(const KdaParams& p, cudaStream_t stream) {
  switch (kda_lane_keys(p.key_dim)) {
    case 2: return launch_sizes<2, S>(p, stream);
    case 4: return launch_sizes<4, S>(p, stream);
    default: return launch_sizes<8, S>(p, stream);
  }
}

}  // namespace

void launch_kda_recurrent(const KdaParams& p, cudaStream_t stream) {
  p.initial.bf16 || p.final.bf16 ? launch_types<BFloat16>(p, stream)
                                 : launch_types<float>(p, stream);
}

}  // namespace packattn::cuda
