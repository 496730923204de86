// SPDX-License-Identifier: Apache-2.0
// From the sums of a tile of rows to its outputs: the results of several splits joined, then
// written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <immintrin.h>

#include "cpu/attention_amx.h"
#include "cpu/attention_amx_math-inl.h"
#include "cpu/attention_amx_pack-inl.h"

namespace packattn::cpu {
namespace {

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

/// What a row's sums are divided by, or multiplied with, and its lse.
struct RowEnd {
  float by = 1;
  float lse = -infinity;
};

inline RowEnd end_of_row(const AttentionTile& tile, const AmxStates& total, std::int64_t r) {
  const TileRow& row = tile.rows[static_cast<std::size_t>(r)];
  const double sink = row.sink ? double{*row.sink} : -double{infinity};
  if (row.visible.empty()) return {row.sink ? 0.0F : 1.0F, static_cast<float>(sink)};
  const double maximum = total.maximum[r] * tile.rule.lse_factor + row.lse_offset;
  if (!row.sink) {
    return {total.weight[r], static_cast<float>(maximum + std::log(double{total.sum[r]}))};
  }
  const double largest = std::max(maximum, sink);
  const double scale = std::exp(maximum - largest), rest = std::exp(sink - largest);
  return {static_cast<float>(scale / (total.weight[r] * scale + rest)),
          static_cast<float>(largest + std::log(total.sum[r] * scale + rest))};
}

/// sum / by, rounded correctly (where neither is tiny or not finite): a quarter of the time that
/// the division takes. `inverse` is 1 / by.
inline __m512 divide(__m512 sum, __m512 by, __m512 inverse) {
  const __m512 guess = _mm512_mul_ps(sum, inverse);
  const __m512 rest = _mm512_fnmadd_ps(guess, by, sum);
  const __mmask16 number = _mm512_cmp_ps_mask(rest, rest, _CMP_EQ_OQ);
  return _mm512_mask_mov_ps(guess, number, _mm512_fmadd_ps(rest, inverse, guess));
}

/// Turns 16 rows round and writes them.
template <class Out>
void write_rows(const AttentionTile& tile, std::int64_t first, const float* by,
                const float* values) {
  const std::int64_t dims = tile.problem.value_dim;
  const std::int64_t count = std::min<std::int64_t>(16, std::ssize(tile.rows) - first);
  const __m512 factor = _mm512_load_ps(by);
  const bool by_factor = tile.rows[static_cast<std::size_t>(first)].sink != nullptr;
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0F), factor);
  for (std::int64_t c = 0; c < dims; c += 16, values += 2 * tile_floats) {
    __m512i x[16];
    for (int i = 0; i < 16; ++i) {
      const __m512 sum = _mm512_load_ps(values + 16 * i);
      // Adding 0 turns -0 into 0.
      const __m512 y =
          _mm512_add_ps(by_factor ? _mm512_mul_ps(sum, factor) : divide(sum, factor, inverse),
                        _mm512_setzero_ps());
      const __mmask16 number = _mm512_cmp_ps_mask(y, y, _CMP_EQ_OQ);
      x[i] = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7fc00000), number, _mm512_castps_si512(y));
    }
    transpose(x);
    const auto mask = static_cast<__mmask16>(first_of_32(std::min<std::int64_t>(16, dims - c)));
    for (std::int64_t i = 0; i < count; ++i) {
      auto* out = reinterpret_cast<Out*>(tile.rows[static_cast<std::size_t>(first + i)].out);
      store_row(_mm512_castsi512_ps(x[i]), mask, out + c);
    }
  }
}

inline void finish_tile(const AttentionTile& tile, const AmxStates& total) {
  const AmxShape shape(tile.problem);
  for (std::int64_t first = 0; first < std::ssize(tile.rows); first += 16) {
    alignas(64) float by[16];
    std::fill_n(by, 16, 1.0F);
    float* values = total.values + first / strip_rows * shape.value_strip_floats() +
                    first % strip_rows / 16 * tile_floats;
    for (std::int64_t r = first; r < std::min<std::int64_t>(first + 16, std::ssize(tile.rows));
         ++r) {
      const TileRow& row = tile.rows[static_cast<std::size_t>(r)];
      const RowEnd end = end_of_row(tile, total, r);
      by[r - first] = end.by;
      if (row.lse) *row.lse = end.lse;
    }
    with_float_type(tile.problem.out_dtype,
                    [&]<class Out>(Out) { write_rows<Out>(tile, first, by, values); });
  }
}

}  // namespace
}  // namespace packattn::cpu
