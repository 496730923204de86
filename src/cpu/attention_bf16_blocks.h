// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "cpu/attention_tile.h"

// The two products of a tile in pairs of bf16, with the instruction that Highway has no name for in
// every release: acc += a[1] b[1] + a[0] b[0], in fp32, one chain. Functions, not a compiler flag
// for the file: nothing else in it may use the instruction.

namespace packattn::cpu::bf16 {

#define PACKATTN_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

inline constexpr int block_rows = 12;
inline constexpr int vectors = 2;
inline constexpr int panel = 16 * vectors;

/// Scores of Rows query rows, [pairs, block_rows], against one panel of keys, [pairs, panel].
template <int Rows>
PACKATTN_BF16_TARGET void score_block(const std::uint32_t* q, const std::uint32_t* keys,
                                      std::int64_t pairs, float* scores) {
  __m512 sum[Rows][vectors];
  for (auto& row : sum) {
    for (__m512& s : row) s = _mm512_setzero_ps();
  }
  for (std::int64_t d = 0; d < pairs; ++d, q += block_rows, keys += panel) {
    __m512i k[vectors];
    for (int n = 0; n < vectors; ++n) k[n] = _mm512_load_si512(keys + n * 16);
    for (int r = 0; r < Rows; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(q[r]));
      for (int n = 0; n < vectors; ++n) {
        sum[r][n] = _mm512_dpbf16_ps(sum[r][n], (__m512bh)x, (__m512bh)k[n]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int n = 0; n < vectors; ++n) {
      _mm512_store_ps(scores + r * key_tile + n * 16, sum[r][n]);
    }
  }
}

/// Which halves of the first and the last pair of values count; both, unless a row runs alone.
struct PairMask { std::uint32_t first = 0xffffffffU, last = 0xffffffffU; };

/// values = values * rescale + P V for Rows rows and one panel of columns. A row of weights is
/// [pairs] in the place of its scores; values are [pairs, panel].
template <int Rows>
PACKATTN_BF16_TARGET void gather_block(const float* weights, const std::uint32_t* panel_v,
                                       std::int64_t pairs, PairMask mask, const float* rescale,
                                       float* values, std::int64_t stride) {
  __m512 sum[Rows][vectors];
  for (auto& row : sum) {
    for (__m512& s : row) s = _mm512_setzero_ps();
  }
  const auto* p = reinterpret_cast<const int*>(weights);
  for (std::int64_t j = 0; j < pairs; ++j, ++p, panel_v += panel) {
    __m512i v[vectors];
    for (int n = 0; n < vectors; ++n) v[n] = _mm512_load_si512(panel_v + n * 16);
    if constexpr (Rows == 1) {
      const std::uint32_t kept =
          (j == 0 ? mask.first : 0xffffffffU) & (j == pairs - 1 ? mask.last : 0xffffffffU);
      for (__m512i& x : v) x = _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(kept)));
    }
    for (int r = 0; r < Rows; ++r) {
      const __m512i x = _mm512_set1_epi32(p[r * key_tile]);
      for (int n = 0; n < vectors; ++n) {
        sum[r][n] = _mm512_dpbf16_ps(sum[r][n], (__m512bh)x, (__m512bh)v[n]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const __m512 factor = _mm512_set1_ps(rescale[r]);
    for (int n = 0; n < vectors; ++n) {
      float* o = values + r * stride + n * 16;
      _mm512_store_ps(o, _mm512_fmadd_ps(_mm512_load_ps(o), factor, sum[r][n]));
    }
  }
}

/// The same from rows of the tensor, those of keys 2 j and 2 j + 1 for pair j, for rows that all
/// see the same keys: halves that `mask` leaves out are taken for 0 in every row.
template <int Rows>
PACKATTN_BF16_TARGET void gather_direct(const float* weights, const std::byte* const* keys,
                                        std::int64_t offset, std::int64_t pairs, PairMask mask,
                                        const float* rescale, float* values, std::int64_t stride) {
  __m512 sum[Rows][vectors];
  for (auto& row : sum) {
    for (__m512& s : row) s = _mm512_setzero_ps();
  }
  const auto* p = reinterpret_cast<const int*>(weights);
  for (std::int64_t j = 0; j < pairs; ++j, ++p) {
    const __m512i even = _mm512_loadu_si512(keys[2 * j] + offset);
    const __m512i odd = _mm512_loadu_si512(keys[2 * j + 1] + offset);
    // Columns 0 to 3 of every 8, and 4 to 7: put in order after the last pair.
    __m512i v[vectors] = {_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)};
    if (j == 0 || j == pairs - 1) {
      const auto kept =
          static_cast<int>((j == 0 ? mask.first : ~0U) & (j == pairs - 1 ? mask.last : ~0U));
      for (__m512i& x : v) x = _mm512_and_si512(x, _mm512_set1_epi32(kept));
    }
    for (int r = 0; r < Rows; ++r) {
      const __m512i x = _mm512_set1_epi32(p[r * key_tile]);
      for (int n = 0; n < vectors; ++n) {
        sum[r][n] = _mm512_dpbf16_ps(sum[r][n], (__m512bh)x, (__m512bh)v[n]);
      }
    }
  }
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int r = 0; r < Rows; ++r) {
    const __m512 factor = _mm512_set1_ps(rescale[r]);
    const __m512 ordered[vectors] = {_mm512_permutex2var_ps(sum[r][0], low, sum[r][1]),
                                     _mm512_permutex2var_ps(sum[r][0], high, sum[r][1])};
    for (int n = 0; n < vectors; ++n) {
      float* o = values + r * stride + n * 16;
      _mm512_store_ps(o, _mm512_fmadd_ps(_mm512_load_ps(o), factor, ordered[n]));
    }
  }
}

/// Weights [begin, end) of a row, whole vectors, become bf16, packed at the row's start, where
/// nothing that is still to be read lies. Returns their sum: out is divided by it, because rounding
/// moves weights that are nearly equal all in one direction (3.5e-3 of out instead of 2e-3).
PACKATTN_BF16_TARGET inline float round_weights(float* row, std::int64_t begin, std::int64_t end) {
  auto* to = reinterpret_cast<std::byte*>(row);
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t j = begin; j < end; j += 16) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(row + j));
    const __m512i widened = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(widened));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + j * 2), rounded);
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace packattn::cpu::bf16
