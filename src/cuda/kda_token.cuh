// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/elements.cuh"
#include "cuda/kda_params.h"

// What both forms of KDA read and write: tokens, gates, betas, rows of the state, in any mixture of
// types. Types are looked at once a row, not compiled: that work is small beside a state's.

namespace packattn::cuda {

/// One sequence of a call, as the kernels see it.
struct KdaSequenceView {
  std::int64_t row, start;
  std::int32_t n, length;
  KdaRow state;
};

/// The rows of sequence n's state, as resolved slots or their absence tell.
__device__ inline KdaRow kda_sequence_rows(const KdaParams& p, std::int32_t n) {
  if (p.rows != nullptr) return p.rows[n];
  const bool stored = p.final.data != nullptr && p.columns.data == nullptr;
  return {p.initial.data != nullptr ? n : -1, stored ? n : -1, 0};
}

__device__ inline KdaSequenceView kda_sequence(const KdaParams& p, std::int32_t n) {
  KdaSequenceView s{.row = n, .start = 0, .n = n, .length = p.length, .state = {}};
  if (p.batch.sequences != nullptr) {
    const DeviceSequence at = p.batch.sequences[n];
    s.row = 0;
    s.start = at.q_start;
    s.length = at.q_length;
  }
  s.state = kda_sequence_rows(p, n);
  return s;
}

__device__ inline std::int64_t token_offset(const KdaTensor& x, const KdaSequenceView& s,
                                            std::int32_t t, int head) {
  return s.row * x.batch_stride + (s.start + t) * x.token_stride + head * x.head_stride;
}

__device__ inline float load_element(const KdaTensor& x, std::int64_t offset) {
  return load_element(x.data, x.dtype, offset);
}
__device__ inline void store_element(const KdaTensor& x, std::int64_t offset, float value) {
  store_element(x.data, x.dtype, offset, value);
}

__device__ inline float gate_bias(const KdaParams& p, int head, int d) {
  if (p.dt_bias == nullptr) return 0;
  return p.dt_bias[head * p.bias_head_stride + d * p.bias_channel_stride];
}

/// The gate kinds: what a raw g becomes. `rate` is exp(A_log), or 1 without it.
__device__ inline float log_decay(const KdaParams& p, float raw, float bias, float rate) {
  if (p.gate == GateKind::given) return raw;
  const float r = raw + bias;
  if (p.gate == GateKind::softplus) return -rate * (r > 20 ? r : log1pf(expf(r)));
  return p.lower_bound * sigmoid(rate * r);
}

__device__ inline float gate_rate(const KdaParams& p, int head) {
  return p.A_log != nullptr ? expf(p.A_log[head * p.A_log_stride]) : 1.0F;
}

__device__ inline float write_strength(const KdaParams& p, float raw) {
  if (p.beta_kind == BetaKind::given) return raw;
  return (p.beta_kind == BetaKind::two_sigmoid ? 2.0F : 1.0F) * sigmoid(raw);
}

/// x exp(g) as x factor + (keep ? x : 0). Close to 1, exp(g) rounded to fp32 would lose what many
/// tokens of a weak gate add up to; exp(g) - 1 does not.
struct Decay {
  float factor;
  bool keep;
  __device__ static Decay of(float g) {
    const bool keep = g > -0.5F;
    return {keep ? expm1f(g) : expf(g), keep};
  }
  __device__ float operator()(float x) const { return fmaf(x, factor, keep ? x : 0.0F); }
};

/// The factor that scales x so that it has length `scale`, or `scale` itself without normalisation.
/// In fp64 the sum of squares neither overflows nor costs an ulp.
__device__ inline float norm_factor(bool l2norm, double squares, double scale) {
  return static_cast<float>(l2norm ? scale / sqrt(squares + 1e-6) : scale);
}

__device__ inline std::int64_t read_slot(const KdaSlotView& slots, std::int32_t n,
                                         std::int64_t column) {
  const std::int64_t at = n * slots.sequence_stride + column * slots.column_stride;
  return slots.wide ? static_cast<const std::int64_t*>(slots.data)[at]
                    : static_cast<const std::int32_t*>(slots.data)[at];
}

// ---- states ---------------------------------------------------------------------------------

template <class S>
__device__ S* state_of(const KdaPool& pool, std::int64_t row, int head) {
  return static_cast<S*>(pool.data) + row * pool.row_stride + head * pool.head_stride;
}

/// Offset of S[k, v] within a head's state.
__device__ inline std::int64_t state_offset(const KdaParams& p, const KdaPool& pool, int k, int v) {
  return p.v_first ? v * pool.outer_stride + k : k * pool.outer_stride + v;
}

/// `threads` threads, this one being number `thread`, copy columns [first, last) of a head's state
/// from row to row, bit for bit; zeros if there is no source.
template <class S>
__device__ void pass_state(const KdaParams& p, const KdaRow& rows, int head, int first, int last,
                           int thread, int threads) {
  if (rows.skipped != 0 || rows.final < 0) return;
  S* to = state_of<S>(p.final, rows.final, head);
  const S* from = rows.initial < 0 ? nullptr : state_of<S>(p.initial, rows.initial, head);
  if (from == to) return;
  const int columns = last - first;
  for (int i = thread; i < columns * p.key_dim; i += threads) {
    const int k = p.v_first ? i % p.key_dim : i / columns;
    const int v = first + (p.v_first ? i / p.key_dim : i % columns);
    to[state_offset(p, p.final, k, v)] =
        from == nullptr ? S{} : from[state_offset(p, p.initial, k, v)];
  }
}

/// Output rows [begin, end) of batch row `row` become 0 in columns [first, last) of a head.
__device__ inline void clear_rows(const KdaParams& p, std::int64_t row, std::int64_t begin,
                                  std::int64_t end, int head, int first, int last, int thread,
                                  int threads) {
  const int columns = last - first;
  const std::int64_t count = (end - begin) * columns;
  for (std::int64_t i = thread; i < count; i += threads) {
    const std::int64_t offset = row * p.out.batch_stride +
                                (begin + i / columns) * p.out.token_stride +
                                head * p.out.head_stride + first + i % columns;
    store_element(p.out, offset, 0);
  }
}

/// Positions of a call's schedule: with boundaries one a sequence and one for the last gap.
__host__ __device__ inline std::int64_t kda_positions(const KdaParams& p) {
  return p.batch.sequences != nullptr ? p.count + std::int64_t{1} : p.count;
}

/// The sequence to work on at this position, if there is one: the longest come first. What needs no
/// arithmetic is done on the way: the rows before sequence number `position` that belong to nobody,
/// that sequence's state if it has no tokens, and the rows of a skipped sequence.
template <class S>
__device__ bool take_sequence(const KdaParams& p, std::int64_t position, int head, int first,
                              int last, int thread, int threads, KdaSequenceView& s) {
  const auto number = static_cast<std::int32_t>(position);
  if (p.batch.sequences != nullptr) {
    // Loads that do not depend on each other, before anything waits for one of them.
    const bool inside = number < p.count;
    const std::int32_t tiles = *p.batch.tile_count;
    const Gap gap = p.batch.gaps[number];
    const DeviceSequence own = inside ? p.batch.sequences[number] : DeviceSequence{0, 0, 0, -1};
    const Tile tile = inside ? p.batch.tiles[number] : Tile{0, 0};
    if (gap.begin < gap.end) {
      clear_rows(p, 0, gap.begin, gap.end, head, first, last, thread, threads);
    }
    if (own.q_length == 0 && own.k_length == 0) {
      pass_state<S>(p, kda_sequence(p, number).state, head, first, last, thread, threads);
    }
    if (number >= tiles) return false;
    s = kda_sequence(p, tile.sequence);
  } else {
    s = kda_sequence(p, number);
    if (s.length == 0) {
      pass_state<S>(p, s.state, head, first, last, thread, threads);
      return false;
    }
  }
  if (s.state.skipped == 0) return true;
  clear_rows(p, s.row, s.start, s.start + s.length, head, first, last, thread, threads);
  return false;
}

}  // namespace packattn::cuda
