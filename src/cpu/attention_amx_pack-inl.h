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

constexpr short least_normal = (127 - 100) << 7, not_finite = 0x7f80;  // as bf16

/// Which of 32 elements must not go through the tiles, as the first of their terms shows: those
/// that are not finite (0 * NaN is NaN, also for a row that does not see the key), and those below
/// 2^-100, whose products with weights could fall below 2^-126.
inline __mmask32 odd_elements(__m512i bits) {
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
  const __m512i above = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(least_normal));
  const __mmask32 outside =
      _mm512_cmpge_epu16_mask(above, _mm512_set1_epi16(not_finite - least_normal));
  return outside & _mm512_test_epi16_mask(magnitude, magnitude);
}

/// Whether any of the elements that it was shown is odd, in fewer instructions than asking each.
class OddWatch {
 public:
  [[gnu::always_inline]] void see(__m512i bits) {
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    largest_ = _mm512_max_epu16(largest_, magnitude);
    // 0 turns into the largest: it is not odd.
    smallest_ = _mm512_min_epu16(smallest_, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
  }
  bool found() const {
    return (_mm512_cmpge_epu16_mask(largest_, _mm512_set1_epi16(not_finite)) |
            _mm512_cmplt_epu16_mask(smallest_, _mm512_set1_epi16(least_normal - 1))) != 0;
  }

 private:
  __m512i largest_ = _mm512_setzero_si512(), smallest_ = _mm512_set1_epi16(-1);
};

/// Two rows as pairs of elements, in the order in which one instruction a vector makes them: the
/// pair in place i of `low` is that of column paired_column(i), in `high` of paired_column(i) + 4.
struct Pairs {
  __m512i low, high;
  Pairs(__m512i a, __m512i b)
      : low(_mm512_unpacklo_epi16(a, b)), high(_mm512_unpackhi_epi16(a, b)) {}
};
constexpr std::int64_t paired_column(std::int64_t place) { return place / 4 * 8 + place % 4; }

/// Asks for rows that are packed a block later, one at a time. Rows of one head lie pages apart,
/// where no hardware prefetcher follows.
class LaterRows {
 public:
  LaterRows(const KeyRows& rows, std::int64_t dims, std::int64_t begin, std::int64_t end)
      : rows_(rows), bytes_(2 * dims), next_(begin), end_(end) {}
  [[gnu::always_inline]] void ask() {
    if (next_ >= end_) return;
    const std::byte* row = rows_[next_++];
    for (std::int64_t at = 0; at < bytes_; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
  }

 private:
  const KeyRows& rows_;
  std::int64_t bytes_, next_, end_;
};

template <int terms>
void pack_key_group(std::int64_t dims, const std::byte* const* rows, LaterRows later,
                    std::byte* to) {
  const std::int64_t steps = (dims + 31) / 32;
  for (std::int64_t j = 0; j < group_keys; ++j) {
    std::byte* row = to + j / 16 * terms * steps * tile_bytes + j % 16 * 64;
    for (std::int64_t s = 0; s < steps; ++s) {
      const auto x = load_elements<terms>(rows[j], 32 * s, dims - 32 * s);
      for (int t = 0; t < terms; ++t)
        _mm512_store_si512(row + (t * steps + s) * tile_bytes, x.term[t]);
    }
    later.ask();
  }
}

/// 32 columns of 32 keys, two tiles a term. `load(j, t)` is term t of key j.
template <int terms, class Load>
[[gnu::always_inline]] inline void turn_values(Load&& load, std::int64_t term_apart,
                                               std::byte* to) {
  for (int t = 0; t < terms; ++t, to += term_apart) {
    for (int half = 0; half < 2; ++half) {  // one after the other: 16 vectors fit into registers
      __m512i x[16];
      for (int j = 0; j < 16; ++j) {
        const Pairs pairs(load(2 * j, t), load(2 * j + 1, t));
        x[j] = half == 0 ? pairs.low : pairs.high;
      }
      transpose(x);
      for (int i = 0; i < 16; ++i) {
        _mm512_store_si512(to + (paired_column(i) + 4 * half) * 64, x[i]);
      }
    }
  }
}

/// True if some element was odd.
template <int terms>
bool pack_value_group(std::int64_t dims, std::int64_t tiles, const std::byte* const* rows,
                      LaterRows later, std::byte* to) {
  OddWatch watch;
  for (std::int64_t j = 0; j < group_keys; ++j) {
    for (std::int64_t c = 0; c < dims; c += 32) {
      watch.see(load_elements<terms>(rows[j], c, dims - c).term[0]);
    }
    later.ask();
  }
  const bool found = watch.found();
  for (std::int64_t c = 0; c < 16 * tiles; c += 32, to += 2 * tile_bytes) {
    const auto load = [&](int j, int t) __attribute__((always_inline)) {
      const auto x = load_elements<terms>(rows[j], c, dims - c);
      return x.term[t];
    };
    if (!found) {
      turn_values<terms>(load, tiles * tile_bytes, to);
      continue;
    }
    turn_values<terms>(
        [&](int j, int t) {
          const auto x = load_elements<terms>(rows[j], c, dims - c);
          return _mm512_maskz_mov_epi16(~odd_elements(x.term[0]), x.term[t]);
        },
        tiles * tile_bytes, to);
  }
  return found;
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
    const std::int64_t later = first + block_keys, stop = std::min(later + group_keys, last);
    const std::int64_t group = first / group_keys - to.first_group;
    pack_key_group<terms>(problem.head_dim, k_rows, LaterRows(k, problem.head_dim, later, stop),
                          to.keys + group * shape.key_group_bytes());
    to.odd[group] = pack_value_group<terms>(problem.value_dim, shape.value_tiles, v_rows,
                                            LaterRows(v, problem.value_dim, later, stop),
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
