// SPDX-License-Identifier: Apache-2.0
// Brings q, k and v into the tiles that the products read; attention_amx.h draws them.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "core/half.h"
#include "cpu/attention_amx.h"
#include "cpu/attention_amx_math-inl.h"

namespace packattn::cpu {
namespace {

/// 32 elements as the bf16 terms that add up to them.
template <int terms>
struct Elements {
  __m512i term[terms];
};

inline __mmask32 first_of_32(std::int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? 0 : (__mmask32{1} << count) - 1;
}

/// `count` elements, or as many as fit, then zeros. Nothing is read for a null row.
template <int terms>
Elements<terms> load_elements(const std::byte* row, std::int64_t at, std::int64_t count) {
  const __m512i bits =
      row ? _mm512_maskz_loadu_epi16(first_of_32(count), row + 2 * at) : _mm512_setzero_si512();
  if constexpr (terms == 1) {
    return {{bits}};
  } else {
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
    const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));
    const __m512i first = to_bf16(low, high);
    const auto widen = [](__m256i x) {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    };
    const __m512i second = to_bf16(_mm512_sub_ps(low, widen(_mm512_castsi512_si256(first))),
                                   _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64(first, 1))));
    // The rest of an infinity would be NaN.
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const __mmask32 finite = _mm512_cmpneq_epi16_mask(_mm512_and_si512(first, exponent), exponent);
    return {{first, _mm512_maskz_mov_epi16(finite, second)}};
  }
}

/// Which of 32 elements must not go through the tiles, as the first of their terms shows: those
/// that are not finite (0 * NaN is NaN, also for a row that does not see the key), and those below
/// 2^-100, whose products with weights could fall below 2^-126.
inline __mmask32 odd_elements(__m512i bits) {
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
  constexpr short smallest = (127 - 100) << 7, infinite = 0x7f80;
  const __m512i above = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(smallest));
  const __mmask32 outside = _mm512_cmpge_epu16_mask(above, _mm512_set1_epi16(infinite - smallest));
  return outside & _mm512_test_epi16_mask(magnitude, magnitude);
}

template <int terms>
void pack_key_group(std::int64_t dims, const std::byte* const* rows, std::byte* to) {
  const std::int64_t steps = (dims + 31) / 32;
  for (std::int64_t j = 0; j < group_keys; ++j) {
    std::byte* row = to + j / 16 * terms * steps * tile_bytes + j % 16 * 64;
    for (std::int64_t s = 0; s < steps; ++s) {
      const auto x = load_elements<terms>(rows[j], 32 * s, dims - 32 * s);
      for (int t = 0; t < terms; ++t)
        _mm512_store_si512(row + (t * steps + s) * tile_bytes, x.term[t]);
    }
  }
}

/// True if some element was odd.
template <int terms>
bool pack_value_group(std::int64_t dims, std::int64_t tiles, const std::byte* const* rows,
                      std::byte* to) {
  __mmask32 found = 0;
  for (std::int64_t c = 0; c < tiles; c += 2) {
    __m512i low[terms][16], high[terms][16];
    for (std::int64_t j = 0; j < 16; ++j) {
      auto a = load_elements<terms>(rows[2 * j], 16 * c, dims - 16 * c);
      auto b = load_elements<terms>(rows[2 * j + 1], 16 * c, dims - 16 * c);
      const __mmask32 odd_a = odd_elements(a.term[0]), odd_b = odd_elements(b.term[0]);
      found |= odd_a | odd_b;
      for (int t = 0; t < terms; ++t) {
        const __m512i x = _mm512_maskz_mov_epi16(~odd_a, a.term[t]);
        const __m512i y = _mm512_maskz_mov_epi16(~odd_b, b.term[t]);
        low[t][j] = interleave(x, y, true);
        high[t][j] = interleave(x, y, false);
      }
    }
    for (int t = 0; t < terms; ++t) {
      transpose(low[t]);
      transpose(high[t]);
      std::byte* tile = to + (t * tiles + c) * tile_bytes;
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + 64 * i, low[t][i]);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + tile_bytes + 64 * i, high[t][i]);
    }
  }
  return found != 0;
}

/// Asks for rows that are packed a block later. Rows of one head lie pages apart, where no hardware
/// prefetcher follows.
inline void fetch_rows(const KeyRows& rows, std::int64_t dims, std::int64_t begin,
                       std::int64_t end) {
  for (std::int64_t j = begin; j < end; ++j) {
    const std::byte* row = rows[j];
    for (std::int64_t at = 0; at < 2 * dims; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
  }
}

template <int terms>
void pack_keys(const AttentionProblem& problem, const KeyRows& k, const KeyRows& v, KeyRange keys,
               std::int64_t last, const PackedKeys& to) {
  const AmxShape shape(problem);
  for (std::int64_t first = keys.begin; first < keys.end; first += group_keys) {
    const std::byte *k_rows[group_keys] = {}, *v_rows[group_keys] = {};
    for (std::int64_t j = 0; j < group_keys && first + j < keys.end; ++j) {
      k_rows[j] = k[first + j];
      v_rows[j] = v[first + j];
    }
    const std::int64_t later = first + block_keys;
    fetch_rows(k, problem.head_dim, later, std::min(later + group_keys, last));
    fetch_rows(v, problem.value_dim, later, std::min(later + group_keys, last));
    const std::int64_t group = first / group_keys - to.first_group;
    pack_key_group<terms>(problem.head_dim, k_rows, to.keys + group * shape.key_group_bytes());
    to.odd[group] = pack_value_group<terms>(problem.value_dim, shape.value_tiles, v_rows,
                                            to.values + group * shape.value_group_bytes());
  }
}

template <int terms>
void pack_queries(const AttentionTile& tile, const AmxScratch& w) {
  const AmxShape shape(tile.problem);
  const std::int64_t dims = tile.problem.head_dim, steps = shape.head_steps;
  const std::int64_t rows = std::ssize(tile.rows);
  for (std::int64_t first = 0; first < rows; first += 16) {
    std::byte* strip = w.q + first / strip_rows * shape.query_strip_bytes();
    for (std::int64_t s = 0; s < steps; ++s) {
      __m512i units[terms][16];
      for (std::int64_t i = 0; i < 16; ++i) {
        const std::byte* row =
            first + i < rows ? tile.rows[static_cast<std::size_t>(first + i)].q : nullptr;
        const auto x = load_elements<terms>(row, 32 * s, dims - 32 * s);
        for (int t = 0; t < terms; ++t) units[t][i] = x.term[t];
      }
      for (int t = 0; t < terms; ++t) {
        transpose(units[t]);
        std::byte* to = strip + ((t * steps + s) * 2 + first % strip_rows / 16) * tile_bytes;
        for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 64 * i, units[t][i]);
      }
    }
  }
  if (rows % strip_rows != 0 && rows % strip_rows <= 16) {  // the other tile of the last strip
    std::byte* strip = w.q + rows / strip_rows * shape.query_strip_bytes();
    for (std::int64_t s = 0; s < terms * steps; ++s) {
      std::fill_n(strip + (s * 2 + 1) * tile_bytes, tile_bytes, std::byte{0});
    }
  }
}

}  // namespace
}  // namespace packattn::cpu
