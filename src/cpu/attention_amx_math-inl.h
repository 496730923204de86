// SPDX-License-Identifier: Apache-2.0
// AVX-512 functions for the kernels on AMX tiles. Internal to the unit that includes it, which has
// to be compiled for AVX-512 with bf16.
#pragma once

#include <cstdint>
#include <limits>

#include <immintrin.h>

#include "core/half.h"
#include "cpu/transpose_512.h"

namespace packattn::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// 2^(x c) for c > 0, relative error 1.5e-7, exactly 1 at x = 0 and 0 at -infinity. NaN stays NaN.
/// The polynomial is the minimax one of degree 5 on [0, 1] with constant 1: what is left when the
/// next lower integer is taken away, which the scaling instruction puts back. x, a difference from
/// the maximum, is exact before c is multiplied in.
class Exp2 {
 public:
  explicit Exp2(float c) : factor_(_mm512_set1_ps(c)) {}

  __attribute__((always_inline)) __m512 operator()(__m512 x) const {
    const __m512 y = _mm512_mul_ps(x, factor_);
    const __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(1.867130050e-3F);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.017030708e-3F));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.579991266e-2F));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.401644439e-1F));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931512952e-1F));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
    return _mm512_scalef_ps(p, y);
  }

 private:
  __m512 factor_;
};

/// tanh x, relative error 3e-7 also near 0, where a softcap works most of the time.
inline __m512 tanh(__m512 x) {
  const __m512 magnitude = _mm512_abs_ps(x);
  // Odd polynomial below 0.625 (the coefficients of Cephes' tanhf).
  const __m512 z = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(-5.70498872745e-3F);
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.06390887954e-2F));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.37397155531e-2F));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33314422036e-1F));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33332819422e-1F));
  const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
  // (1 - e) / (1 + e) with e = e^(-2 |x|) above.
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 e = Exp2(2.88539008177793F)(_mm512_sub_ps(_mm512_setzero_ps(), magnitude));
  const __m512 far = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0F));
  const __mmask16 small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0.625F), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(_mm512_or_ps(far, sign), small, near);
}

/// Two vectors of floats as 32 bf16, to nearest, those of `low` first.
inline __m512i to_bf16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
/// The bf16 in the even and the odd places of a vector of 32, as floats.
inline __m512 even_floats(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
inline __m512 odd_floats(__m512i x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
}

/// Floats of one row in the type of `to`; `mask` says how many. A NaN has to be the quiet one.
inline void store_row(__m512 x, __mmask16 mask, float* to) { _mm512_mask_storeu_ps(to, mask, x); }
inline void store_row(__m512 x, __mmask16 mask, Half* to) {
  const __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_mask_storeu_epi16(to, mask, half);
}
inline void store_row(__m512 x, __mmask16 mask, BFloat16* to) {
  // Not the conversion instruction: it takes subnormals for 0.
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_mask_storeu_epi16(to, mask, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

}  // namespace
}  // namespace packattn::cpu
