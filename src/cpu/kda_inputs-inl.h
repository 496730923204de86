// SPDX-License-Identifier: Apache-2.0
// What a KDA token brings, read and evaluated in vectors: normalised q and k, log decays, betas.
// One copy per Highway target.
#include <cmath>
#include <cstdint>

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "core/half.h"
#include "core/kda_problem.h"
#include "cpu/simd_math-inl.h"

#if defined(PACKATTN_CPU_KDA_INPUTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_KDA_INPUTS_INL_H
#undef PACKATTN_CPU_KDA_INPUTS_INL_H
#else
#define PACKATTN_CPU_KDA_INPUTS_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Highway's exp, 1 ulp, also above its range and for NaN, which it turns into 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V kda_exp(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(hn::Set(d, 104.0F), x)));
}

/// e^g as a factor of the state that loses nothing near 1: p = s * factor + (s & keep). Where g
/// rounds to 0 in units of ln 2, keep is all ones and factor e^g - 1; elsewhere keep is 0 and
/// factor e^g. A rounded e^g would be off by the same 3e-8 at every token, and slow gates add
/// thousands.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V split_decay(D d, V g, V& keep) {
  const hn::RebindToSigned<D> di;
  // Below -150 ln 2 the result is 0 in fp32; Max keeps its second operand if that is NaN.
  const V x = hn::Min(hn::Set(d, 89.0F), hn::Max(hn::Set(d, -104.5F), g));
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504F)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145752F), x);  // ln 2 in two parts
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6F), r);
  V p = hn::Set(d, 1.0F / 5040);
  for (const float coefficient : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F}) {
    p = hn::MulAdd(p, r, hn::Set(d, coefficient));
  }
  const V less_one = hn::MulAdd(hn::Mul(p, r), r, r);
  const auto slow = hn::Eq(n, hn::Zero(d));
  // 2^n in two factors: n reaches -150.
  const auto exponent = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(exponent);
  const auto power = [&](auto e) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(e, hn::Set(di, 127))));
  };
  const V one = hn::Set(d, 1.0F);
  const V whole =
      hn::Mul(hn::Mul(hn::Add(less_one, one), power(half)), power(hn::Sub(exponent, half)));
  keep = hn::IfThenElseZero(slow, hn::BitCast(d, hn::Set(di, -1)));
  return hn::IfThenElse(hn::IsNaN(g), g, hn::IfThenElse(slow, less_one, whole));
}

/// 1 / (1 + e^-x), to a few ulp on both sides: e^-|x| never overflows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V e = kda_exp(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V softplus(D d, V x) {
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 20.0F)), x, hn::Log1p(d, kda_exp(d, x)));
}

inline std::int64_t kda_token_offset(const TensorView& x, const KdaSequence& s, std::int64_t t,
                                     std::int64_t head) {
  return s.row * x.stride(0) + (s.start + t) * x.stride(1) + head * x.stride(2);
}

/// `count` elements at `offset` as fp32, then zeros up to `padded`.
inline void widen_from(const TensorView& x, std::int64_t offset, std::int64_t count,
                       std::int64_t padded, float* to) {
  with_float_type(x.dtype(), [&](auto type) HWY_ATTR {
    widen(x.as<decltype(type)>() + offset, static_cast<std::size_t>(count),
          static_cast<std::size_t>(padded), to);
  });
}

/// The inputs of one value head of one sequence. Rows are padded with zeros to whole vectors.
class KdaInputs {
 public:
  KdaInputs(const KdaCall& call, const KdaSequence& sequence, std::int64_t head)
      : a_(call.args), p_(call.problem), s_(sequence), head_(head) {
    if (p_.has_A_log) rate_ = std::exp(a_.A_log.as<float>()[head * a_.A_log.stride(0)]);
    if (!p_.has_dt_bias) return;
    const TensorView& bias = a_.dt_bias;
    bias_ = bias.as<float>() + (bias.rank() == 2 ? head * bias.stride(0) : head * p_.key_dim);
  }

  static std::int64_t padded(std::int64_t size) {
    constexpr std::int64_t lanes = hn::MaxLanes(hn::ScalableTag<float>());
    return (size + lanes - 1) / lanes * lanes;
  }

  /// Asks for the rows of a token to come. Rows of one head lie pages apart, where no hardware
  /// prefetcher follows.
  void prefetch(std::int64_t t) const {
    if (t >= s_.length) return;
    const std::int64_t key_head = head_ / p_.group();
    prefetch_row(a_.q, kda_token_offset(a_.q, s_, t, key_head), p_.key_dim);
    prefetch_row(a_.k, kda_token_offset(a_.k, s_, t, key_head), p_.key_dim);
    prefetch_row(a_.v, kda_token_offset(a_.v, s_, t, head_), p_.value_dim);
    prefetch_row(a_.g, kda_token_offset(a_.g, s_, t, head_), p_.gate_per_head ? 1 : p_.key_dim);
    prefetch_row(a_.beta, kda_token_offset(a_.beta, s_, t, head_), 1);
  }

  /// scale * q, after its normalisation if there is one.
  void query(std::int64_t t, float* to) const {
    row(a_.q, t, to);
    scale_row(to, p_.scale);
  }
  void key(std::int64_t t, float* to) const {
    row(a_.k, t, to);
    if (p_.l2norm) scale_row(to, 1);
  }
  void value(std::int64_t t, std::int64_t column, std::int64_t count, std::int64_t padded_count,
             float* to) const {
    widen_from(a_.v, kda_token_offset(a_.v, s_, t, head_) + column, count, padded_count, to);
  }

  /// The log decays of a token.
  void log_decay(std::int64_t t, float* to) const {
    const std::int64_t offset = kda_token_offset(a_.g, s_, t, head_);
    const std::int64_t K = p_.key_dim, end = padded(K);
    if (p_.gate_per_head) {
      float g = 0;
      widen_from(a_.g, offset, 1, 1, &g);
      for (std::int64_t d = 0; d < end; ++d) to[d] = g;
    } else {
      widen_from(a_.g, offset, K, end, to);
    }
    if (p_.gate != GateKind::given) evaluate_gate(K, end, to);
    for (std::int64_t d = K; d < end; ++d) to[d] = 0;
  }

  /// One beta of the token, or those of `count` columns.
  void beta(std::int64_t t, std::int64_t column, std::int64_t count, float* to) const {
    const std::int64_t offset = kda_token_offset(a_.beta, s_, t, head_);
    const std::int64_t first = p_.beta_per_channel ? column : 0;
    widen_from(a_.beta, offset + first, count, padded(count), to);
    if (p_.beta == BetaKind::given) return;
    const hn::ScalableTag<float> d;
    const auto factor = hn::Set(d, p_.beta == BetaKind::two_sigmoid ? 2.0F : 1.0F);
    for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::Mul(factor, sigmoid(d, hn::LoadU(d, to + i))), d, to + i);
    }
  }

 private:
  void evaluate_gate(std::int64_t K, std::int64_t end, float* to) const {
    if (bias_ != nullptr) {
      for (std::int64_t d = 0; d < K; ++d) to[d] += bias_[d];
    }
    const hn::ScalableTag<float> d;
    const auto rate = hn::Set(d, rate_);
    for (std::int64_t i = 0; i < end; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      const auto r = hn::LoadU(d, to + i);
      const auto g = p_.gate == GateKind::softplus
                         ? hn::Neg(hn::Mul(rate, softplus(d, r)))
                         : hn::Mul(hn::Set(d, static_cast<float>(p_.lower_bound)),
                                   sigmoid(d, hn::Mul(rate, r)));
      hn::StoreU(g, d, to + i);
    }
  }

  static void prefetch_row(const TensorView& x, std::int64_t offset, std::int64_t count) {
    const auto bytes = static_cast<std::int64_t>(size_of(x.dtype()));
    const std::byte* from = x.as<std::byte>() + offset * bytes;
    for (std::int64_t i = 0; i < count * bytes; i += 64) hwy::Prefetch(from + i);
  }

  void row(const TensorView& x, std::int64_t t, float* to) const {
    const std::int64_t key_head = head_ / p_.group();
    widen_from(x, kda_token_offset(x, s_, t, key_head), p_.key_dim, padded(p_.key_dim), to);
  }

  /// x = factor x / |x|, or factor x without normalisation. In fp64 the sum of squares neither
  /// overflows nor costs the factor an ulp.
  void scale_row(float* x, double factor) const {
    const hn::ScalableTag<float> d;
    const hn::Repartition<double, decltype(d)> dd;
    const hn::Rebind<float, decltype(dd)> half;
    const std::int64_t end = padded(p_.key_dim);
    if (p_.l2norm) {
      auto sum = hn::Zero(dd);
      for (std::int64_t i = 0; i < end; i += static_cast<std::int64_t>(hn::Lanes(dd))) {
        const auto wide = hn::PromoteTo(dd, hn::LoadU(half, x + i));
        sum = hn::MulAdd(wide, wide, sum);
      }
      factor /= std::sqrt(hn::GetLane(hn::SumOfLanes(dd, sum)) + 1e-6);
    }
    const auto scale = hn::Set(d, static_cast<float>(factor));
    for (std::int64_t i = 0; i < end; i += static_cast<std::int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::Mul(hn::LoadU(d, x + i), scale), d, x + i);
    }
  }

  const KdaArgs& a_;
  const KdaProblem& p_;
  const KdaSequence& s_;
  std::int64_t head_;
  float rate_ = 1;
  const float* bias_ = nullptr;
};

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
