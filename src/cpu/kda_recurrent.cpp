// SPDX-License-Identifier: Apache-2.0
// The KDA recurrence in vectors; docs/kernels/cpu-kda.md explains and measures it. Lanes run along
// the value axis, whose columns never mix. One pass over the state per token:
//
//   for d in 0 .. K                  one load and one store of the state row
//     s  = S[d] + k'[d] e'           the write of the token before
//     p  = s exp(g[d])               decay, as s + s expm1(g) where that is the exact form
//     u += p k[d];  r += p q[d]      S^T k and S^T q of the decayed state
//   e = beta (v - u)                 written by the next token's pass
//   o = r + e (k . q)                = (P + k e^T)^T q
//
// Tokens come in tiles: gates, norms and betas of a tile are evaluated once, then each block of
// columns takes the tile while its part of the state is in the first-level cache.
#include <algorithm>
#include <array>

#include "cpu/cpu.h"
#include "cpu/kda_schedule.h"
#include "cpu/parallel.h"
#include "cpu/simd_support.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kda_recurrent.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
#include "cpu/kda_inputs-inl.h"
#include "cpu/kda_state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

constexpr hn::ScalableTag<float> df;
using Vec = hn::Vec<decltype(df)>;
constexpr std::int64_t lanes = hn::MaxLanes(df);
// Sums over K that run side by side: a multiply-add takes four cycles and two start in each. With
// 32 registers they are four vectors of columns, with 16 two and two halves of K.
constexpr int vectors = HWY_TARGET == HWY_AVX2 ? 2 : 4;
constexpr int splits = HWY_TARGET == HWY_AVX2 ? 2 : 1;
constexpr std::int64_t block = vectors * lanes;
constexpr std::int64_t tile_tokens = 32;

std::int64_t padded_columns(std::int64_t columns) { return (columns + block - 1) / block * block; }

/// One token, evaluated: rows of [padded K].
struct Token {
  const float *decay, *keep;  ///< split_decay: p = s * decay + (s & keep)
  const float *k, *q;
};

/// A worker's scratch memory, cut into what a tile of tokens needs.
struct Scratch {
  Scratch(const KdaProblem& p, std::int64_t columns, float* memory)
      : K(KdaInputs::padded(p.key_dim)), C(padded_columns(columns)) {
    const auto take = [&](std::int64_t count) {
      float* at = memory != nullptr ? memory + floats : nullptr;
      floats += count;
      return at;
    };
    state = take(p.key_dim * C);
    token_rows = take(tile_tokens * 4 * K);
    last_k = take(K);
    v = take(tile_tokens * C);
    beta = take(tile_tokens * (p.beta_per_channel ? C : lanes));
    beta_stride = p.beta_per_channel ? C : lanes;
    kq = take(tile_tokens);
    pending = take(C);
  }
  Token token(std::int64_t t) const {
    const float* rows = token_rows + t * 4 * K;
    return {rows, rows + K, rows + 2 * K, rows + 3 * K};
  }

  std::int64_t K, C, beta_stride;
  float* state;             ///< [C / block][K][block]
  float* token_rows;        ///< [tile][decay, keep, k, q][K]
  float* last_k;            ///< k of the token whose write is pending
  float* v;                 ///< [tile][C]; becomes the output
  float* beta;              ///< [tile][beta_stride]
  float* kq;                ///< [tile], k . q
  float* pending;           ///< [C], e of the token whose write is pending
  std::int64_t floats = 0;  ///< all of it
};

void prepare_tile(const KdaInputs& in, const KdaItem& item, std::int64_t first, std::int64_t count,
                  const KdaProblem& p, const Scratch& w) {
  for (std::int64_t t = 0; t < count; ++t) {
    float* decay = w.token_rows + t * 4 * w.K;
    float *keep = decay + w.K, *k = keep + w.K, *q = k + w.K;
    in.log_decay(first + t, decay);
    for (std::int64_t d = 0; d < w.K; d += lanes) {
      Vec mask;
      hn::StoreU(split_decay(df, hn::LoadU(df, decay + d), mask), df, decay + d);
      hn::StoreU(mask, df, keep + d);
    }
    in.key(first + t, k);
    in.query(first + t, q);
    Vec dot = hn::Zero(df);
    for (std::int64_t d = 0; d < w.K; d += lanes) {
      dot = hn::MulAdd(hn::LoadU(df, k + d), hn::LoadU(df, q + d), dot);
    }
    w.kq[t] = hn::GetLane(hn::SumOfLanes(df, dot));
    in.value(first + t, item.first_column, item.columns, w.C, w.v + t * w.C);
    float* beta = w.beta + t * w.beta_stride;
    in.beta(first + t, item.first_column, p.beta_per_channel ? item.columns : 1, beta);
    if (!p.beta_per_channel) hn::StoreU(hn::Set(df, beta[0]), df, beta);
  }
}

/// The write of the token before: S += k e^T, made by the next pass over S.
struct PendingWrite {
  const float* k;
  const float* e;
};

/// One token on one block of columns: v becomes o, and e is left for the next token's pass.
template <bool Pending>
void step(std::int64_t K, const Token& token, PendingWrite before, float kq, const float* beta,
          std::int64_t beta_step, float* HWY_RESTRICT S, float* v, float* e) {
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

/// S += k e^T: the write that no further token makes.
void finish(std::int64_t K, const Scratch& w) {
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
void run_tile(const KdaInputs& in, const KdaProblem& p, std::int64_t first, std::int64_t count,
              bool pending, const Scratch& w) {
  for (std::int64_t c = 0; c < w.C; c += block) {
    const float* before_k = w.last_k;
    for (std::int64_t t = 0; t < count; ++t) {
      const Token x = w.token(t);
      if (c == 0) in.prefetch(first + count + t);
      const float* beta = w.beta + t * w.beta_stride + (p.beta_per_channel ? c : 0);
      const auto run = pending || t > 0 ? step<true> : step<false>;
      run(p.key_dim, x, {before_k, w.pending + c}, w.kq[t], beta, p.beta_per_channel ? lanes : 0,
          w.state + c * p.key_dim, w.v + t * w.C + c, w.pending + c);
      before_k = x.k;
    }
  }
  std::copy_n(w.token(count - 1).k, w.K, w.last_k);
}

void run_item(const KdaCall& call, const KdaItem& item, float* memory) {
  const KdaProblem& p = call.problem;
  const KdaSequence& s = call.sequences[item.sequence];
  const Scratch w(p, item.columns, memory);
  const KdaInputs in(call, s, item.head);
  load_columns(call, item, block, w.state);
  std::fill_n(w.pending, w.C, 0.0F);
  // With a state to store after every token, no write may stay pending.
  const std::int64_t tile = p.slot_columns > 0 ? 1 : tile_tokens;
  for (std::int64_t first = 0; first < s.length; first += tile) {
    const std::int64_t count = std::min(tile, s.length - first);
    prepare_tile(in, item, first, count, p, w);
    run_tile(in, p, first, count, first > 0 && p.slot_columns == 0, w);
    write_rows(call, item, first, count, w.C, w.v);
    if (p.slot_columns > 0) {
      finish(p.key_dim, w);
      const auto column = item.sequence * static_cast<std::size_t>(p.slot_columns);
      store_columns(call, call.final, call.column_slots[column + static_cast<std::size_t>(first)],
                    item, block, w.state);
    }
  }
  if (s.final < 0) return;
  finish(p.key_dim, w);
  store_columns(call, call.final, s.final, item, block, w.state);
}

std::size_t worker_bytes(const KdaProblem& p, std::int64_t columns) {
  return static_cast<std::size_t>(Scratch(p, columns, nullptr).floats) * sizeof(float);
}

std::shared_ptr<const Plan> plan(const KdaCall& call, int threads) {
  return KdaSchedule::make(call, threads, block, worker_bytes);
}

void run(const KdaCall& call, const Plan& made, const RunContext& context) {
  const auto& schedule = static_cast<const KdaSchedule&>(made);
  parallel_for_items(schedule.items, context, [&](std::int64_t index, int worker) {
    const KdaItem item = schedule.item(index);
    if (call.sequences[item.sequence].skipped) return;
    std::byte* memory =
        context.workspace.data() + static_cast<std::size_t>(worker) * schedule.worker_bytes;
    run_item(call, item, reinterpret_cast<float*>(memory));
  });
}

constexpr std::string_view name = HWY_TARGET == HWY_AVX3   ? "cpu/kda_recurrent.avx512"
                                  : HWY_TARGET == HWY_AVX2 ? "cpu/kda_recurrent.avx2"
                                                           : "cpu/kda_recurrent.neon";

std::optional<Fault> decline(const KdaCall&) { return decline_simd(name, HWY_TARGET); }

}  // namespace

KdaImplementation kda_recurrent_row() { return {name, decline, plan, run}; }

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets with a row

#if HWY_ONCE
namespace packattn::cpu {

std::span<const KdaImplementation> kda_recurrent() {
  static const std::vector<KdaImplementation> rows = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::kda_recurrent_row(),
#endif
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::kda_recurrent_row(),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::kda_recurrent_row(),
#endif
  };
  return rows;
}

}  // namespace packattn::cpu
#endif
