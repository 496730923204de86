// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace packattn::cpu {

/// Transposes 16 vectors of 16 units of 4 bytes.
__attribute__((target("avx512f"), always_inline)) inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Now the 128-bit parts of r[4 a + i] are columns 4 p + i of rows 4 a .. 4 a + 3.
  for (int i = 0; i < 4; ++i) {
    const __m512i low01 = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    t[i] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[4 + i] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

}  // namespace packattn::cpu
