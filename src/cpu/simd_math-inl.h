// SPDX-License-Identifier: Apache-2.0
// Elementary functions and conversions on vectors of floats, one copy per Highway target.
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "core/half.h"
#include "cpu/simd_targets.h"

#if defined(PACKATTN_CPU_SIMD_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_SIMD_MATH_INL_H
#undef PACKATTN_CPU_SIMD_MATH_INL_H
#else
#define PACKATTN_CPU_SIMD_MATH_INL_H
#endif

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// 2^x for x <= 127, relative error below 2e-7, exactly 1 at 0, exactly 0 below -126.5 and at -inf.
/// NaN stays NaN. The polynomial is the minimax one of degree 6 on [-1/2, 1/2] with constant 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  const hn::Rebind<std::uint32_t, D> du;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; with 127 added there,
  // shifting them into the exponent field makes the power of two. Max keeps its second operand
  // if that is NaN.
  const V magic = hn::Set(d, 12582912.0F + 127.0F);
  x = hn::Max(hn::Set(d, -127.0F), x);
  const V rounded = hn::Add(x, magic);
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, rounded)));
  const V f = hn::Sub(x, hn::Sub(rounded, magic));
  V p = hn::Set(d, 1.559467702e-4F);
  p = hn::MulAdd(p, f, hn::Set(d, 1.340664385e-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 9.617692976e-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550310551e-2F));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402265278e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931472150e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  return hn::Mul(p, power);
}

/// tanh x with a relative error below 3e-7, also near 0, where a softcap works most of the time.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  const V magnitude = hn::Abs(x);
  // Odd polynomial below 0.625 (the coefficients of Cephes' tanhf).
  const V z = hn::Mul(x, x);
  V p = hn::Set(d, -5.70498872745e-3F);
  p = hn::MulAdd(p, z, hn::Set(d, 2.06390887954e-2F));
  p = hn::MulAdd(p, z, hn::Set(d, -5.37397155531e-2F));
  p = hn::MulAdd(p, z, hn::Set(d, 1.33314422036e-1F));
  p = hn::MulAdd(p, z, hn::Set(d, -3.33332819422e-1F));
  const V near = hn::MulAdd(hn::Mul(p, z), x, x);
  // 1 - 2 / (e^2x + 1) above; past 10 the result is 1 in fp32.
  const V two_log2e = hn::Set(d, 2.88539008177793F);
  const V e = exp2(d, hn::Mul(hn::Min(hn::Set(d, 10.0F), magnitude), two_log2e));
  const V one = hn::Set(d, 1.0F);
  const V far = hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625F)), near, hn::CopySign(far, x));
}

/// Loads as many elements as `d` has lanes, as fp32.
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const BFloat16* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> du;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const Half* from) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

/// Stores a full vector with the rounding of core/half.h. A NaN has to be the quiet one,
/// 0x7fc00000.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_floats(D d, V x, float* to) {
  hn::StoreU(x, d, to);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_floats([[maybe_unused]] D d, V x, BFloat16* to) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<std::uint32_t, D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto high = hn::BitCast(di, hn::ShiftRight<16>(rounded));
  hn::StoreU(hn::DemoteTo(d16, high), d16, reinterpret_cast<std::uint16_t*>(to));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_floats([[maybe_unused]] D d, V x, Half* to) {
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, x), d16, reinterpret_cast<hwy::float16_t*>(to));
}

/// `count` elements of `from` as fp32, then zeros up to `padded`.
template <class T>
HWY_INLINE void widen(const T* from, std::size_t count, std::size_t padded, float* to) {
  const hn::ScalableTag<float> d;
  constexpr std::size_t lanes = hn::MaxLanes(hn::ScalableTag<float>());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load_floats(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = load(from[i]);
  for (; i < padded; ++i) to[i] = 0;
}

/// `count` floats in the type of `to`.
template <class T>
HWY_INLINE void narrow(const float* from, std::size_t count, T* to) {
  const hn::ScalableTag<float> d;
  constexpr std::size_t lanes = hn::MaxLanes(hn::ScalableTag<float>());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) store_floats(d, hn::LoadU(d, from + i), to + i);
  for (; i < count; ++i) to[i] = store<T>(from[i]);
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard per target
