// SPDX-License-Identifier: Apache-2.0
// A tile of KDA tokens, evaluated once for all columns. One copy per Highway target.
#include <cstdint>

#include <hwy/highway.h>

#include "cpu/kda_inputs-inl.h"
#include "cpu/kda_state-inl.h"

#if defined(PACKATTN_CPU_KDA_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_KDA_TILE_INL_H
#undef PACKATTN_CPU_KDA_TILE_INL_H
#else
#define PACKATTN_CPU_KDA_TILE_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

constexpr hn::ScalableTag<float> df;
using Vec = hn::Vec<decltype(df)>;
constexpr std::int64_t lanes = hn::MaxLanes(df);
constexpr std::int64_t tile_tokens = 32;

/// One token, evaluated: rows of [padded K].
struct Token {
  const float *decay, *keep;  ///< split_decay: p = s * decay + (s & keep)
  const float *k, *q;
};

/// A worker's scratch memory, cut into what a tile of tokens needs. Columns come in whole units.
struct Scratch {
  Scratch(const KdaProblem& p, std::int64_t columns, std::int64_t unit, float* memory)
      : K(KdaInputs::padded(p.key_dim)), C((columns + unit - 1) / unit * unit) {
    const auto take = [&](std::int64_t count) {
      float* at = memory != nullptr ? memory + floats : nullptr;
      floats += count;
      return at;
    };
    state = take(K * C);
    token_rows = take(tile_tokens * 4 * K);
    last_k = take(K);
    v = take(tile_tokens * C);
    beta_stride = p.beta_per_channel ? KdaInputs::padded(C) : lanes;
    beta = take(tile_tokens * beta_stride);
    kq = take(tile_tokens);
    pending = take(C);
  }
  Token token(std::int64_t t) const {
    const float* rows = token_rows + t * 4 * K;
    return {rows, rows + K, rows + 2 * K, rows + 3 * K};
  }

  std::int64_t K, C, beta_stride;
  float* state;             ///< as its form lays it out
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

}  // namespace
}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
