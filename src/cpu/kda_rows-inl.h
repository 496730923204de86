// SPDX-License-Identifier: Apache-2.0
// The KDA recurrence on a state whose rows are value columns, as V-first states have it: lanes run
// along the key channels, and a token's two sums are finished across them. Nothing is transposed,
// so a decode step reads and writes the state in the order of memory. One copy per Highway target.
#include <algorithm>
#include <array>
#include <cstdint>

#include <hwy/highway.h>

#include "cpu/kda_tile-inl.h"

#if defined(PACKATTN_CPU_KDA_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_KDA_ROWS_INL_H
#undef PACKATTN_CPU_KDA_ROWS_INL_H
#else
#define PACKATTN_CPU_KDA_ROWS_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

// Rows worked on together: they share what is loaded of the token, and their sums are independent.
constexpr int row_group = 4;

/// One token on a group of rows: v becomes o, and e is left for the next token's pass.
template <bool Pending>
HWY_INLINE void step_rows(std::int64_t K, const Token& token, PendingWrite before, float kq,
                          const float* beta, bool beta_per_row, float* HWY_RESTRICT S, float* v,
                          float* e) {
  Vec u[row_group], r[row_group];
  for (int n = 0; n < row_group; ++n) u[n] = r[n] = hn::Zero(df);
  for (std::int64_t d = 0; d < K; d += lanes) {
    const Vec factor = hn::LoadU(df, token.decay + d), mask = hn::LoadU(df, token.keep + d);
    const Vec kd = hn::LoadU(df, token.k + d), qd = hn::LoadU(df, token.q + d);
    for (int n = 0; n < row_group; ++n) {
      Vec s = hn::LoadU(df, S + n * K + d);
      if constexpr (Pending)
        s = hn::MulAdd(hn::LoadU(df, before.k + d), hn::Set(df, before.e[n]), s);
      const Vec p = hn::MulAdd(s, factor, hn::And(s, mask));
      u[n] = hn::MulAdd(p, kd, u[n]);
      r[n] = hn::MulAdd(p, qd, r[n]);
      hn::StoreU(p, df, S + n * K + d);
    }
  }
  const hn::FixedTag<float, 4> d4;
  for (int n = 0; n < row_group; n += 4) {
    std::array<float, 4> sum_u, sum_r;
    store_sums(df, u[n], u[n + 1], u[n + 2], u[n + 3], sum_u.data());
    store_sums(df, r[n], r[n + 1], r[n + 2], r[n + 3], sum_r.data());
    const auto strength = beta_per_row ? hn::LoadU(d4, beta + n) : hn::Set(d4, beta[0]);
    const auto missing = hn::Sub(hn::LoadU(d4, v + n), hn::LoadU(d4, sum_u.data()));
    const auto delta = hn::Mul(strength, missing);
    hn::StoreU(delta, d4, e + n);
    hn::StoreU(hn::MulAdd(delta, hn::Set(d4, kq), hn::LoadU(d4, sum_r.data())), d4, v + n);
  }
}

/// State [C][padded K]: blocks of rows take a tile of tokens while they are in the first-level
/// cache.
struct KdaRows {
  static constexpr std::int64_t unit = row_group;

  static void load(const KdaCall& call, const KdaItem& item, const Scratch& w) {
    const KdaSequence& s = call.sequences[item.sequence];
    const std::int64_t rows = s.initial < 0 ? 0 : item.columns;
    // Row after row, as the hardware's prefetcher wants it.
    for (std::int64_t j = 0; j < rows; ++j) {
      widen_from(call.initial, offset(call.initial, s.initial, item, j), call.problem.key_dim, w.K,
                 w.state + j * w.K);
    }
    std::fill(w.state + rows * w.K, w.state + w.C * w.K, 0.0F);
  }

  static void store(const KdaCall& call, const KdaItem& item, std::int64_t row, const Scratch& w) {
    if (row < 0) return;
    with_float_type(call.final.dtype(), [&](auto type) HWY_ATTR {
      for (std::int64_t j = 0; j < item.columns; ++j) {
        narrow(w.state + j * w.K, static_cast<std::size_t>(call.problem.key_dim),
               call.final.as<decltype(type)>() + offset(call.final, row, item, j));
      }
    });
  }

  /// S += k e^T: the write that no further token makes.
  static void finish(const KdaCall&, const Scratch& w) {
    for (std::int64_t j = 0; j < w.C; ++j) finish_row(j, w, w.state + j * w.K);
  }

  /// The same into the caller's state.
  static void finish_into(const KdaCall& call, const KdaItem& item, std::int64_t row,
                          const Scratch& w) {
    if (w.K != call.problem.key_dim) {
      finish(call, w);
      store(call, item, row, w);
      return;
    }
    with_float_type(call.final.dtype(), [&](auto type) HWY_ATTR {
      for (std::int64_t j = 0; j < item.columns; ++j) {
        finish_row(j, w, call.final.as<decltype(type)>() + offset(call.final, row, item, j));
      }
    });
  }

  static void run_tile(const KdaInputs& in, const KdaCall& call, const KdaItem&, std::int64_t first,
                       std::int64_t count, bool pending, const Scratch& w) {
    const std::int64_t rows = std::max<std::int64_t>(1, 4096 / (w.K * row_group)) * row_group;
    for (std::int64_t c = 0; c < w.C; c += rows) {
      const float* before_k = w.last_k;
      for (std::int64_t t = 0; t < count; ++t) {
        if (c == 0) in.prefetch(first + count + t);
        const auto run = pending || t > 0 ? pass<true> : pass<false>;
        run(call.problem, t, c, std::min(w.C, c + rows), before_k, w);
        before_k = w.token(t).k;
      }
    }
    std::copy_n(w.token(count - 1).k, w.K, w.last_k);
  }

 private:
  /// One token on rows [begin, end).
  template <bool Pending>
  static void pass(const KdaProblem& p, std::int64_t t, std::int64_t begin, std::int64_t end,
                   const float* before_k, const Scratch& w) {
    const Token x = w.token(t);
    const float* beta = w.beta + t * w.beta_stride;
    for (std::int64_t j = begin; j < end; j += row_group) {
      step_rows<Pending>(w.K, x, {before_k, w.pending + j}, w.kq[t],
                         p.beta_per_channel ? beta + j : beta, p.beta_per_channel,
                         w.state + j * w.K, w.v + t * w.C + j, w.pending + j);
    }
  }

  template <class T>
  static void finish_row(std::int64_t j, const Scratch& w, T* to) {
    const Vec e = hn::Set(df, w.pending[j]);
    const float* from = w.state + j * w.K;
    for (std::int64_t d = 0; d < w.K; d += lanes) {
      store_floats(df, hn::MulAdd(hn::LoadU(df, w.last_k + d), e, hn::LoadU(df, from + d)), to + d);
    }
  }

  static std::int64_t offset(const TensorView& states, std::int64_t row, const KdaItem& item,
                             std::int64_t j) {
    return row * states.stride(0) + item.head * states.stride(1) +
           (item.first_column + j) * states.stride(2);
  }
};

}  // namespace
}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
