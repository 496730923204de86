// SPDX-License-Identifier: Apache-2.0
// The softmax of a strip of 32 rows over a block of keys, a row in each lane of two vectors.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "cpu/attention_amx.h"
#include "cpu/attention_amx_math-inl.h"
#include "cpu/attention_amx_pack-inl.h"

namespace packattn::cpu {
namespace {

/// What the rows of a strip see of a block of keys, counted from the block's first key.
struct StripKeys {
  alignas(64) std::int32_t begin[strip_rows];
  alignas(64) std::int32_t end[strip_rows];

  StripKeys(std::span<const TileRow> rows, std::int64_t first_key) {
    for (std::size_t i = 0; i < strip_rows; ++i) {
      const KeyRange seen = i < rows.size() ? rows[i].visible : KeyRange{};
      const auto place = [&](std::int64_t j) {
        return static_cast<std::int32_t>(std::clamp<std::int64_t>(j - first_key, 0, block_keys));
      };
      begin[i] = place(seen.begin);
      end[i] = place(seen.end);
    }
  }
  /// Which rows of half a strip see key j.
  __mmask16 see(std::int64_t j, int half) const {
    const __m512i key = _mm512_set1_epi32(static_cast<int>(j));
    return _mm512_cmple_epi32_mask(_mm512_load_si512(begin + 16 * half), key) &
           _mm512_cmpgt_epi32_mask(_mm512_load_si512(end + 16 * half), key);
  }
};

/// Scale, softcap and ALiBi of scores [begin, end) of a block.
inline void shape_scores(const ScoreRule& rule, std::span<const TileRow> rows,
                         std::int64_t first_key, std::int64_t begin, std::int64_t end,
                         float* scores) {
  alignas(64) float slope[strip_rows] = {}, from[strip_rows] = {};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    slope[i] = -rows[i].slope;
    from[i] = static_cast<float>(first_key - rows[i].diagonal);
  }
  const __m512 scale = _mm512_set1_ps(rule.scale), cap = _mm512_set1_ps(rule.softcap);
  for (std::int64_t j = begin; j < end; ++j) {
    for (int h = 0; h < 2; ++h) {
      float* at = scores + j * strip_rows + 16 * h;
      __m512 x = _mm512_mul_ps(scale, _mm512_load_ps(at));
      if (rule.softcap > 0) x = _mm512_mul_ps(cap, tanh(_mm512_div_ps(x, cap)));
      if (rule.alibi) {
        const __m512 key = _mm512_set1_ps(static_cast<float>(j));
        const __m512 distance = _mm512_abs_ps(_mm512_add_ps(_mm512_load_ps(from + 16 * h), key));
        x = _mm512_fmadd_ps(_mm512_load_ps(slope + 16 * h), distance, x);
      }
      _mm512_store_ps(at, x);
    }
  }
}

inline void mask_scores(const StripKeys& keys, std::int64_t begin, std::int64_t end,
                        float* scores) {
  for (std::int64_t j = begin; j < end; ++j) {
    for (int h = 0; h < 2; ++h) {
      float* at = scores + j * strip_rows + 16 * h;
      _mm512_mask_storeu_ps(at, static_cast<__mmask16>(~keys.see(j, h)), _mm512_set1_ps(-infinity));
    }
  }
}

/// The softmax of half a strip: what of a block's scores becomes weights, two keys at a time.
template <int terms>
class Soften {
 public:
  Soften(const ScoreRule& rule, std::int64_t begin, std::int64_t end, const float* scores,
         const AmxStates& states, std::int64_t row)
      : exp2_(rule.log2_factor), states_(states), row_(row) {
    __m512 largest[4];
    for (__m512& x : largest) x = _mm512_set1_ps(-infinity);
    for (std::int64_t j = begin; j < end; j += 4) {  // NaN scores are passed over here
      for (int i = 0; i < 4; ++i) {
        largest[i] = _mm512_max_ps(_mm512_load_ps(scores + (j + i) * strip_rows), largest[i]);
      }
    }
    const __m512 block =
        _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));
    const __m512 old = _mm512_load_ps(states.maximum + row);
    const __m512 lowest = _mm512_set1_ps(-infinity);
    // A row's weights refer to an older maximum until it is passed by a factor of 2^8: what was
    // gathered so far has to be multiplied that much more rarely. Whether it is concerns the row
    // only.
    const __m512 passed =
        _mm512_mul_ps(_mm512_sub_ps(block, old), _mm512_set1_ps(rule.log2_factor));
    const __mmask16 grows = _mm512_cmp_ps_mask(passed, _mm512_set1_ps(8.0F), _CMP_GT_OQ);
    const __m512 maximum = _mm512_mask_mov_ps(old, grows, block);
    _mm512_store_ps(states.maximum + row, maximum);
    // With nothing but -infinity so far, subtract 0: the difference of infinities would be NaN.
    subtract_ = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(maximum, lowest, _CMP_NEQ_UQ), maximum);
    const __mmask16 older = _mm512_cmp_ps_mask(old, lowest, _CMP_NEQ_UQ);
    changed_ = grows & older;
    rescale_ =
        _mm512_mask_mov_ps(_mm512_set1_ps(1.0F), changed_, exp2_(_mm512_sub_ps(old, subtract_)));
  }

  /// What the weights of a block add up to: the exponentials of even and of odd keys, and as the
  /// product with V takes them.
  struct Sums {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps(), weight = _mm512_setzero_ps();
  };

  /// Keys 2 pair and 2 pair + 1.
  void take(const float* scores, std::int64_t pair, std::byte* weights, Sums& sums) const {
    const float* at = scores + 2 * pair * strip_rows;
    const __m512 p0 = exp2_(_mm512_sub_ps(_mm512_load_ps(at), subtract_));
    const __m512 p1 = exp2_(_mm512_sub_ps(_mm512_load_ps(at + strip_rows), subtract_));
    sums.even = _mm512_add_ps(sums.even, p0);
    sums.odd = _mm512_add_ps(sums.odd, p1);
    const __m512i packed = pairs(p0, p1);
    _mm512_store_si512(weights + pair * pair_bytes, packed);
    if constexpr (terms == 1) {
      const auto ones = (__m512bh)_mm512_set1_epi16(0x3f80);
      sums.weight = _mm512_dpbf16_ps(sums.weight, (__m512bh)packed, ones);
    } else {
      _mm512_store_si512(
          weights + (block_keys / 2 + pair) * pair_bytes,
          pairs(_mm512_sub_ps(p0, even_floats(packed)), _mm512_sub_ps(p1, odd_floats(packed))));
    }
  }

  /// After all keys of a block; the values gathered so far have to be multiplied by rescale().
  void finish(const Sums& sums) const {
    const __m512 sum = _mm512_add_ps(sums.even, sums.odd);
    join(states_.sum, sum);
    join(states_.weight, terms == 1 ? sums.weight : sum);
  }
  __mmask16 changed() const { return changed_; }
  __m512 rescale() const { return rescale_; }

  static constexpr std::int64_t pair_bytes = strip_rows * 4;

 private:
  /// Pairs of bf16, p0 first, in the order of the lanes.
  static __m512i pairs(__m512 p0, __m512 p1) {
    const __m512i index =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(index, to_bf16(p0, p1));
  }
  void join(float* state, __m512 x) const {
    _mm512_store_ps(state + row_, _mm512_fmadd_ps(_mm512_load_ps(state + row_), rescale_, x));
  }

  Exp2 exp2_;
  const AmxStates& states_;
  std::int64_t row_;
  __m512 subtract_, rescale_;
  __mmask16 changed_;
};

/// Multiplies half a strip of gathered values, 16 rows in the lanes. Tiles take what is below
/// 2^-126 for 0, but only where they visit it.
inline void rescale_values(__m512 factor, std::int64_t value_tiles, float* values) {
  const __m512 smallest = _mm512_set1_ps(std::numeric_limits<float>::min());
  for (std::int64_t c = 0; c < value_tiles; ++c, values += 2 * tile_floats) {
    for (int i = 0; i < 16; ++i) {
      const __m512 x = _mm512_mul_ps(_mm512_load_ps(values + 16 * i), factor);
      const __mmask16 kept = _mm512_cmp_ps_mask(_mm512_abs_ps(x), smallest, _CMP_NLT_UQ);
      _mm512_store_ps(values + 16 * i, _mm512_maskz_mov_ps(kept, x));
    }
  }
}

/// Adds to `sums` what the odd values of one group of keys weigh for a strip.
template <int terms>
void gather_odd_values(const AttentionTile& tile, const StripKeys& keys, std::int64_t first_key,
                       std::int64_t group, const std::byte* weights, float* sums) {
  for (std::int64_t j = group * group_keys; j < (group + 1) * group_keys; ++j) {
    const __mmask16 see[2] = {keys.see(j, 0), keys.see(j, 1)};
    if (see[0] == 0 && see[1] == 0) continue;
    const std::byte* row = tile.v[first_key + j];
    __m512 p[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int t = 0; t < terms; ++t) {
      for (int h = 0; h < 2; ++h) {
        const __m512i pair =
            _mm512_load_si512(weights + (t * block_keys / 2 + j / 2) * strip_rows * 4 + 64 * h);
        p[h] = _mm512_add_ps(p[h], j % 2 == 0 ? even_floats(pair) : odd_floats(pair));
      }
    }
    for (std::int64_t c = 0; c < tile.problem.value_dim; c += 32) {
      const __m512i first = load_elements<terms>(row, c, tile.problem.value_dim - c).term[0];
      alignas(64) std::uint16_t bits[32];
      _mm512_store_si512(bits, first);
      for (__mmask32 odd = odd_elements(first); odd != 0; odd &= odd - 1) {
        const std::int64_t i = __builtin_ctz(odd);
        const __m512 v = _mm512_set1_ps(to_float(BFloat16{bits[i]}));
        float* sum = sums + (c + i) / 16 * 2 * tile_floats + i % 16 * 16;
        for (int h = 0; h < 2; ++h, sum += tile_floats) {
          const __m512 old = _mm512_load_ps(sum);
          _mm512_store_ps(sum, _mm512_mask3_fmadd_ps(p[h], v, old, see[h]));
        }
      }
    }
  }
}

/// total = total and part, each referring to its own maximum.
inline void merge_states(const AttentionTile& tile, const AmxStates& part, const AmxStates& total) {
  const AmxShape shape(tile.problem);
  const Exp2 exp2(tile.rule.log2_factor);
  const __m512 lowest = _mm512_set1_ps(-infinity);
  for (std::int64_t row = 0; row < std::ssize(tile.rows); row += 16) {
    const __m512 old = _mm512_load_ps(total.maximum + row);
    const __m512 now = _mm512_load_ps(part.maximum + row);
    const __m512 maximum = _mm512_max_ps(old, now);
    const __m512 subtract =
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(maximum, lowest, _CMP_NEQ_UQ), maximum);
    const __m512 old_factor = exp2(_mm512_sub_ps(old, subtract));
    const __m512 new_factor = exp2(_mm512_sub_ps(now, subtract));
    const auto join = [&](float* to, const float* from) {
      const __m512 x = _mm512_mul_ps(_mm512_load_ps(from), new_factor);
      _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), old_factor, x));
    };
    _mm512_store_ps(total.maximum + row, maximum);
    join(total.sum + row, part.sum + row);
    join(total.weight + row, part.weight + row);
    const std::int64_t at =
        row / strip_rows * shape.value_strip_floats() + row % strip_rows / 16 * tile_floats;
    for (std::int64_t c = 0; c < shape.value_tiles; ++c) {
      for (std::int64_t i = 0; i < tile_floats; i += 16) {
        const std::int64_t x = at + c * 2 * tile_floats + i;
        join(total.values + x, part.values + x);
      }
    }
  }
}

}  // namespace
}  // namespace packattn::cpu
