// SPDX-License-Identifier: Apache-2.0
// What a step of 16 tokens of the chunked form does apart from the products with the state, which
// are vectors' work in kda_chunk.cpp and tiles' in kda_amx-inl.h. One copy per Highway target.
#include <cstdint>

#include <hwy/highway.h>

#include "cpu/kda_inputs-inl.h"
#include "cpu/kda_schedule.h"
#include "cpu/kda_state-inl.h"

#if defined(PACKATTN_CPU_KDA_STEP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_KDA_STEP_INL_H
#undef PACKATTN_CPU_KDA_STEP_INL_H
#else
#define PACKATTN_CPU_KDA_STEP_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

constexpr hn::ScalableTag<float> df;
using Vec = hn::Vec<decltype(df)>;
constexpr std::int64_t lanes = hn::MaxLanes(df);
constexpr std::int64_t step_tokens = 16;
/// Columns of the state that are worked on together, as many vectors.
constexpr int vectors = 2;
constexpr std::int64_t block = vectors * lanes;

/// A worker's scratch memory.
struct Scratch {
  Scratch(const KdaProblem& p, std::int64_t columns, float* memory)
      : K(KdaInputs::padded(p.key_dim)), C((columns + block - 1) / block * block) {
    const auto take = [&](std::int64_t count) {
      float* at = memory != nullptr ? memory + floats : nullptr;
      floats += count;
      return at;
    };
    state = take(K * C);
    kept = take(step_tokens * K);
    from_start = take(2 * step_tokens * K);
    total = take(K);
    decay = take(K);
    keep = take(K);
    factor = take(K);
    q = take(K);
    A = take(step_tokens * step_tokens);
    B = take(step_tokens * step_tokens);
    beta = take(step_tokens + lanes);
    v = take(step_tokens * C);
    e = take(step_tokens * block);
  }
  float* keys_from_start() const { return from_start; }
  float* queries_from_start() const { return from_start + step_tokens * K; }

  std::int64_t K, C;
  float* state;             ///< [C / block][K][block], or as the form lays it out
  float* kept;              ///< [16][K], k_j decayed to the current token
  float* from_start;        ///< [2][16][K], k_i D_i0 and then q_i D_i0
  float* total;             ///< [K], the sum of the step's gates
  float *decay, *keep;      ///< [K], its exponential, as split_decay has it
  float* factor;            ///< [K], exp(g) of the current token
  float* q;                 ///< [K]
  float *A, *B;             ///< [16][16]
  float* beta;              ///< [16]
  float* v;                 ///< [16][C]; becomes the output
  float* e;                 ///< [16][block]
  std::int64_t floats = 0;  ///< all of it
};

/// Row i of A and B, and one more step of decay for the kept keys. `k` is the token's key.
void relate(const Scratch& w, std::int64_t i, const float* k) {
  for (std::int64_t j = 0; j < i; j += 4) {
    // Rows of a group that are past i are stale; what they sum to is never read.
    Vec a[4], b[4];
    for (int n = 0; n < 4; ++n) a[n] = b[n] = hn::Zero(df);
    for (std::int64_t d = 0; d < w.K; d += lanes) {
      const Vec factor = hn::LoadU(df, w.factor + d);
      const Vec kd = hn::LoadU(df, k + d), qd = hn::LoadU(df, w.q + d);
      for (int n = 0; n < 4; ++n) {
        float* at = w.kept + (j + n) * w.K + d;
        const Vec kept = hn::Mul(hn::LoadU(df, at), factor);
        hn::StoreU(kept, df, at);
        a[n] = hn::MulAdd(kept, kd, a[n]);
        b[n] = hn::MulAdd(kept, qd, b[n]);
      }
    }
    store_sums(df, a[0], a[1], a[2], a[3], w.A + i * step_tokens + j);
    store_sums(df, b[0], b[1], b[2], b[3], w.B + i * step_tokens + j);
  }
  Vec dot = hn::Zero(df);
  for (std::int64_t d = 0; d < w.K; d += lanes) {
    dot = hn::MulAdd(hn::LoadU(df, k + d), hn::LoadU(df, w.q + d), dot);
    hn::StoreU(hn::LoadU(df, k + d), df, w.kept + i * w.K + d);
  }
  w.B[i * step_tokens + i] = hn::GetLane(hn::SumOfLanes(df, dot));
  for (std::int64_t j = 0; j < i; ++j) w.A[i * step_tokens + j] *= w.beta[i];
}

/// Everything of a step that does not touch the state.
void prepare(const KdaInputs& in, const KdaItem& item, std::int64_t first, std::int64_t count,
             const Scratch& w) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* k = w.keys_from_start() + i * w.K;
    float* q = w.queries_from_start() + i * w.K;
    in.log_decay(first + i, w.factor);
    in.key(first + i, k);
    in.query(first + i, w.q);
    in.beta(first + i, 0, 1, w.beta + i);
    in.value(first + i, item.first_column, item.columns, w.C, w.v + i * w.C);
    for (std::int64_t d = 0; d < w.K; d += lanes) {
      const Vec g = hn::LoadU(df, w.factor + d);
      const Vec sum = i == 0 ? g : hn::Add(hn::LoadU(df, w.total + d), g);
      hn::StoreU(sum, df, w.total + d);
      hn::StoreU(kda_exp(df, g), df, w.factor + d);
    }
    relate(w, i, k);
    // `decay` is exp of the sum so far, as a product; split_decay replaces it after the last token.
    for (std::int64_t d = 0; d < w.K; d += lanes) {
      const Vec factor = hn::LoadU(df, w.factor + d);
      const Vec product = i == 0 ? factor : hn::Mul(hn::LoadU(df, w.decay + d), factor);
      hn::StoreU(product, df, w.decay + d);
      hn::StoreU(hn::Mul(hn::LoadU(df, k + d), product), df, k + d);
      hn::StoreU(hn::Mul(hn::LoadU(df, w.q + d), product), df, q + d);
    }
  }
  for (std::int64_t d = 0; d < w.K; d += lanes) {
    Vec mask;
    hn::StoreU(split_decay(df, hn::LoadU(df, w.total + d), mask), df, w.decay + d);
    hn::StoreU(mask, df, w.keep + d);
  }
}

/// E by forward substitution, and O. Both sums of a row run side by side.
void solve(std::int64_t count, float* v, const Scratch& w) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float *A = w.A + i * step_tokens, *B = w.B + i * step_tokens;
    float *ei = w.e + i * block, *oi = v + i * w.C;
    Vec e[vectors], o[vectors];
    for (int n = 0; n < vectors; ++n) {
      e[n] = hn::LoadU(df, ei + n * lanes);
      o[n] = hn::LoadU(df, oi + n * lanes);
    }
    for (std::int64_t j = 0; j < i; ++j) {
      const Vec a = hn::Set(df, A[j]), b = hn::Set(df, B[j]);
      for (int n = 0; n < vectors; ++n) {
        const Vec ej = hn::LoadU(df, w.e + j * block + n * lanes);
        e[n] = hn::NegMulAdd(a, ej, e[n]);
        o[n] = hn::MulAdd(b, ej, o[n]);
      }
    }
    for (int n = 0; n < vectors; ++n) {
      hn::StoreU(e[n], df, ei + n * lanes);
      hn::StoreU(hn::MulAdd(hn::Set(df, B[i]), e[n], o[n]), df, oi + n * lanes);
    }
  }
}

}  // namespace
}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
