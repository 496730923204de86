// SPDX-License-Identifier: Apache-2.0
// The KDA recurrence on a state whose rows are key channels: lanes run along the value columns. One
// copy per Highway target.
#include <algorithm>
#include <cstdint>

#include <hwy/highway.h>

#include "cpu/kda_tile-inl.h"

#if defined(PACKATTN_CPU_KDA_COLUMNS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_KDA_COLUMNS_INL_H
#undef PACKATTN_CPU_KDA_COLUMNS_INL_H
#else
#define PACKATTN_CPU_KDA_COLUMNS_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

// Sums over K that run side by side: a multiply-add takes four cycles and two start in each. With
// 32 registers they are four vectors of columns, with 16 two and two halves of K.
constexpr int vectors = HWY_TARGET == HWY_AVX2 ? 2 : 4;
constexpr int splits = HWY_TARGET == HWY_AVX2 ? 2 : 1;
constexpr std::int64_t block = vectors * lanes;

/// One token on one block of columns: v becomes o, and e is left for the next token's pass.
template <bool Pending>
void step_columns(std::int64_t K, const Token& token, PendingWrite before, float kq,
                  const float* beta, std::int64_t beta_step, float* HWY_RESTRICT S, float* v,
                  float* e) {
  const float *decay = token.decay, *keep = token.keep, *k = token.k, *q = token.q;
  Vec u[splits][vectors], r[splits][vectors], written[vectors];
  for (int n = 0; n < vectors; ++n) {
    written[n] = hn::LoadU(df, before.e + n * lanes);
    for (int half = 0; half < splits; ++half) u[half][n] = r[half][n] = hn::Zero(df);
  }
  const auto pass_row = [&](std::int64_t d, int half) HWY_ATTR {
    const Vec before_k = hn::Set(df, before.k[d]);
    const Vec factor = hn::Set(df, decay[d]), mask = hn::Set(df, keep[d]);
    const Vec kd = hn::Set(df, k[d]), qd = hn::Set(df, q[d]);
    for (int n = 0; n < vectors; ++n) {
      float* at = S + d * block + n * lanes;
      Vec s = hn::LoadU(df, at);
      if constexpr (Pending) s = hn::MulAdd(before_k, written[n], s);
      const Vec p = hn::MulAdd(s, factor, hn::And(s, mask));
      u[half][n] = hn::MulAdd(p, kd, u[half][n]);
      r[half][n] = hn::MulAdd(p, qd, r[half][n]);
      hn::StoreU(p, df, at);
    }
  };
  std::int64_t d = 0;
  for (; d + splits <= K; d += splits) {
    for (int half = 0; half < splits; ++half) pass_row(d + half, half);
  }
  for (; d < K; ++d) pass_row(d, 0);
  for (int n = 0; n < vectors; ++n) {
    for (int half = 1; half < splits; ++half) {
      u[0][n] = hn::Add(u[0][n], u[half][n]);
      r[0][n] = hn::Add(r[0][n], r[half][n]);
    }
    const Vec missing = hn::Sub(hn::LoadU(df, v + n * lanes), u[0][n]);
    const Vec delta = hn::Mul(hn::LoadU(df, beta + n * beta_step), missing);
    hn::StoreU(delta, df, e + n * lanes);
    hn::StoreU(hn::MulAdd(delta, hn::Set(df, kq), r[0][n]), df, v + n * lanes);
  }
}

/// State blocks [C / block][K][block]: each takes a tile of tokens while it is in the first-level
/// cache.
struct KdaColumns {
  static constexpr std::int64_t unit = block;

  static void load(const KdaCall& call, const KdaItem& item, const Scratch& w) {
    load_columns(call, item, block, w.state);
  }
  static void store(const KdaCall& call, const KdaItem& item, std::int64_t row, const Scratch& w) {
    store_columns(call, call.final, row, item, block, w.state);
  }

  /// S += k e^T: the write that no further token makes.
  static void finish(const KdaCall& call, const Scratch& w) {
    const std::int64_t K = call.problem.key_dim;
    for (std::int64_t c = 0; c < w.C; c += block) {
      for (std::int64_t d = 0; d < K; ++d) {
        const Vec k = hn::Set(df, w.last_k[d]);
        for (std::int64_t i = c; i < c + block; i += lanes) {
          float* at = w.state + c * K + d * block + i - c;
          hn::StoreU(hn::MulAdd(k, hn::LoadU(df, w.pending + i), hn::LoadU(df, at)), df, at);
        }
      }
    }
  }

  /// A tile of tokens, column block by column block. `pending` says whether last_k and pending hold
  /// a write of an earlier tile.
  static void run_tile(const KdaInputs& in, const KdaCall& call, const KdaItem&, std::int64_t first,
                       std::int64_t count, bool pending, const Scratch& w) {
    const KdaProblem& p = call.problem;
    for (std::int64_t c = 0; c < w.C; c += block) {
      const float* before_k = w.last_k;
      for (std::int64_t t = 0; t < count; ++t) {
        const Token x = w.token(t);
        if (c == 0) in.prefetch(first + count + t);
        const float* beta = w.beta + t * w.beta_stride + (p.beta_per_channel ? c : 0);
        const auto run = pending || t > 0 ? step_columns<true> : step_columns<false>;
        run(p.key_dim, x, {before_k, w.pending + c}, w.kq[t], beta, p.beta_per_channel ? lanes : 0,
            w.state + c * p.key_dim, w.v + t * w.C + c, w.pending + c);
        before_k = x.k;
      }
    }
    std::copy_n(w.token(count - 1).k, w.K, w.last_k);
  }

  static void finish_into(const KdaCall& call, const KdaItem& item, std::int64_t row,
                          const Scratch& w) {
    finish(call, w);
    store(call, item, row, w);
  }
};

}  // namespace
}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
