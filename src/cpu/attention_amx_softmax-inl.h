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

/// The softmax of a strip over a block: scores become weights, a pair of keys and half a strip at a
/// time, so that a few instructions fit between one product and the next.
///
/// A row's weights refer to an older maximum until it is passed by a factor of 2^8: what was
/// gathered so far has to be multiplied that much more rarely, and the largest score of a block
/// need not be known before its weights are worked out. Whether it is passed concerns the row only.
///
/// Everything is inlined and no address is taken: what lives in memory would be written and read
/// back around every product.
template <int terms, int halves = 2>
class Soften {
 public:
  /// `ahead`: finds the block's largest scores first.
  [[gnu::always_inline]] Soften(const ScoreRule& rule, std::int64_t begin, std::int64_t end,
                                const float* scores, std::byte* weights, const AmxStates& states,
                                std::int64_t row, bool ahead)
      : rule_(rule),
        states_(states),
        row_(row),
        scores_(scores),
        begin_(begin),
        end_(end),
        key_(begin),
        weights_(weights),
        exp2_(rule.log2_factor) {
    each([&](auto h) __attribute__((always_inline)) {
      old_[h] = _mm512_load_ps(states.maximum + row + 16 * h);
      maximum_[h] = old_[h];
      largest_[h] = _mm512_set1_ps(-infinity);
      even_[h] = odd_[h] = weight_[h] = _mm512_setzero_ps();
      if (ahead) {
        for (std::int64_t j = begin; j < end; j += 2) keep_largest<h>(score<h>(j), score<h>(j + 1));
        maximum_[h] = _mm512_mask_mov_ps(old_[h], outgrown<h>(), largest_[h]);
      }
      subtract_[h] = finite_or_zero(maximum_[h]);
    });
  }

  /// The next pair of keys for half a strip, if one is left; the last half moves on.
  template <int half>
  [[gnu::always_inline]] void take() {
    if (key_ >= end_) return;
    const __m512 s0 = score<half>(key_), s1 = score<half>(key_ + 1);
    keep_largest<half>(s0, s1);
    const __m512 p0 = exp2_(_mm512_sub_ps(s0, subtract_[half]));
    const __m512 p1 = exp2_(_mm512_sub_ps(s1, subtract_[half]));
    even_[half] = _mm512_add_ps(even_[half], p0);
    odd_[half] = _mm512_add_ps(odd_[half], p1);
    std::byte* to = weights_ + key_ * (pair_bytes / 2) + 64 * half;
    const __m512i packed = pairs(p0, p1);
    _mm512_store_si512(to, packed);
    if constexpr (terms == 1) {
      const auto ones = (__m512bh)_mm512_set1_epi16(0x3f80);
      weight_[half] = _mm512_dpbf16_ps(weight_[half], (__m512bh)packed, ones);
    } else {
      _mm512_store_si512(
          to + block_keys / 2 * pair_bytes,
          pairs(_mm512_sub_ps(p0, even_floats(packed)), _mm512_sub_ps(p1, odd_floats(packed))));
    }
    if constexpr (half == halves - 1) key_ += 2;
  }
  [[gnu::always_inline]] void take_rest() {
    while (key_ < end_) each([&](auto h) __attribute__((always_inline)) { take<h>(); });
  }

  /// After all pairs: joins the block to the rows' sums. Where weights referred to something too
  /// small, all of them are worked out again, which changes nothing for the other rows.
  [[gnu::always_inline]] void finish() {
    if ((outgrown<0>() | outgrown<halves - 1>()) != 0) {
      again(rule_, begin_, end_, scores_, weights_, states_, row_);
    } else {
      store();
    }
  }
  /// After that: whether values gathered so far have to be multiplied by rescale().
  template <int half>
  [[gnu::always_inline]] bool changed() const {
    return (_mm512_cmp_ps_mask(now<half>(), old_[half], _CMP_NEQ_UQ) & older<half>()) != 0;
  }
  template <int half>
  [[gnu::always_inline]] __m512 rescale() const {
    const __m512 x = exp2_(_mm512_sub_ps(old_[half], finite_or_zero(now<half>())));
    return _mm512_mask_mov_ps(_mm512_set1_ps(1.0F), older<half>(), x);
  }

  static constexpr std::int64_t pair_bytes = strip_rows * 4;

 private:
  template <class F>
  [[gnu::always_inline]] static void each(F&& f) {
    f(std::integral_constant<int, 0>());
    if constexpr (halves == 2) f(std::integral_constant<int, 1>());
  }
  template <int half>
  [[gnu::always_inline]] __m512 score(std::int64_t key) const {
    return _mm512_load_ps(scores_ + key * strip_rows + 16 * half);
  }
  /// NaN is passed over.
  template <int half>
  [[gnu::always_inline]] void keep_largest(__m512 s0, __m512 s1) {
    largest_[half] = _mm512_max_ps(s1, _mm512_max_ps(s0, largest_[half]));
  }
  template <int half>
  [[gnu::always_inline]] __mmask16 outgrown() const {
    const __m512 passed = _mm512_mul_ps(_mm512_sub_ps(largest_[half], maximum_[half]),
                                        _mm512_set1_ps(rule_.log2_factor));
    return _mm512_cmp_ps_mask(passed, _mm512_set1_ps(8.0F), _CMP_GT_OQ);
  }
  /// Which rows have seen a key before.
  template <int half>
  [[gnu::always_inline]] __mmask16 older() const {
    return _mm512_cmp_ps_mask(old_[half], _mm512_set1_ps(-infinity), _CMP_NEQ_UQ);
  }
  /// With nothing but -infinity so far, 0 is subtracted: the difference of infinities would be NaN.
  [[gnu::always_inline]] static __m512 finite_or_zero(__m512 maximum) {
    const __mmask16 some = _mm512_cmp_ps_mask(maximum, _mm512_set1_ps(-infinity), _CMP_NEQ_UQ);
    return _mm512_maskz_mov_ps(some, maximum);
  }
  template <int half>
  [[gnu::always_inline]] __m512 now() const {
    return _mm512_load_ps(states_.maximum + row_ + 16 * half);
  }
  /// Pairs of bf16, p0 first, in the order of the lanes.
  [[gnu::always_inline]] static __m512i pairs(__m512 p0, __m512 p1) {
    const __m512i index =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(index, to_bf16(p0, p1));
  }

  __attribute__((noinline)) static void again(const ScoreRule& rule, std::int64_t begin,
                                              std::int64_t end, const float* scores,
                                              std::byte* weights, const AmxStates& states,
                                              std::int64_t row) {
    Soften soften(rule, begin, end, scores, weights, states, row, true);
    soften.take_rest();
    soften.store();
  }
  [[gnu::always_inline]] void store() const {
    each([&](auto h) __attribute__((always_inline)) {
      _mm512_store_ps(states_.maximum + row_ + 16 * h, maximum_[h]);
      const __m512 sum = _mm512_add_ps(even_[h], odd_[h]), by = rescale<h>();
      const auto join = [&](float* state, __m512 x) __attribute__((always_inline)) {
        float* at = state + row_ + 16 * h;
        _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_load_ps(at), by, x));
      };
      join(states_.sum, sum);
      join(states_.weight, terms == 1 ? weight_[h] : sum);
    });
  }

  const ScoreRule& rule_;
  const AmxStates& states_;
  std::int64_t row_;
  const float* scores_;
  std::int64_t begin_, end_, key_;
  std::byte* weights_;
  Exp2 exp2_;
  // Of either half of the strip. The sums are those of the exponentials of even and of odd keys,
  // and of the weights as the product with V takes them.
  __m512 old_[halves], maximum_[halves], subtract_[halves], largest_[halves];
  __m512 even_[halves], odd_[halves], weight_[halves];
};

/// Calls f(a, b, load_a, load_b) for the products of term a of the keys and term b of the queries.
/// Each differs from the one before in one operand, the only one that has to be loaded.
template <int terms, class F>
[[gnu::always_inline]] inline void for_score_terms(F&& f) {
  constexpr std::integral_constant<int, 0> first;
  constexpr std::integral_constant<int, 1> second;
  f(first, first, std::true_type(), std::true_type());
  if constexpr (terms == 2) {
    f(first, second, std::false_type(), std::true_type());
    f(second, second, std::true_type(), std::false_type());
    f(second, first, std::false_type(), std::true_type());
  }
}
/// The same for values and weights. The product of both second terms is below 2^-16.
template <int terms, class F>
[[gnu::always_inline]] inline void for_gather_terms(F&& f) {
  constexpr std::integral_constant<int, 0> first;
  constexpr std::integral_constant<int, 1> second;
  if constexpr (terms == 2) f(first, second, std::true_type(), std::true_type());
  f(first, first, std::bool_constant<terms == 1>(), std::true_type());
  if constexpr (terms == 2) f(second, first, std::true_type(), std::false_type());
}

/// While it lives, results below 2^-126 are 0. Working out a subnormal weight takes the processor
/// thirty times as long as another.
class FlushTiny {
 public:
  explicit FlushTiny(bool flush = true) : old_(_MM_GET_FLUSH_ZERO_MODE()) {
    _MM_SET_FLUSH_ZERO_MODE(flush ? _MM_FLUSH_ZERO_ON : _MM_FLUSH_ZERO_OFF);
  }
  ~FlushTiny() { _MM_SET_FLUSH_ZERO_MODE(old_); }
  FlushTiny(const FlushTiny&) = delete;
  FlushTiny& operator=(const FlushTiny&) = delete;

 private:
  unsigned old_;
};

/// Tiles take what is below 2^-126 for 0, but only where they visit it.
inline __m512 without_tiny(__m512 x) {
  const __m512 smallest = _mm512_set1_ps(std::numeric_limits<float>::min());
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), smallest, _CMP_NLT_UQ), x);
}

/// Multiplies half a strip of gathered values, 16 rows in the lanes.
inline void rescale_values(__m512 factor, std::int64_t value_tiles, float* values) {
  for (std::int64_t c = 0; c < value_tiles; ++c, values += 2 * tile_floats) {
    for (int i = 0; i < 16; ++i) {
      _mm512_store_ps(values + 16 * i,
                      without_tiny(_mm512_mul_ps(_mm512_load_ps(values + 16 * i), factor)));
    }
  }
}

/// Adds to `sums` what the odd values of one group of keys weigh for a strip.
template <int terms>
__attribute__((noinline)) void gather_odd_values(const AttentionTile& tile, const StripKeys& keys,
                                                 std::int64_t first_key, std::int64_t group,
                                                 const std::byte* weights, float* sums) {
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

}  // namespace
}  // namespace packattn::cpu
