// SPDX-License-Identifier: Apache-2.0
// The two products of a tile, Q K^T and P V, for the rows and columns that fit into registers; one
// copy per Highway target.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

#include "cpu/attention_pack-inl.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_math-inl.h"

#if defined(PACKATTN_CPU_ATTENTION_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_ATTENTION_BLOCKS_INL_H
#undef PACKATTN_CPU_ATTENTION_BLOCKS_INL_H
#else
#define PACKATTN_CPU_ATTENTION_BLOCKS_INL_H
#endif

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {

/// Calls `f` with the number of rows as a compile-time constant: the smallest block that fits.
template <class F>
HWY_INLINE void with_block(std::int64_t rows, F&& f) {
  if (rows > 8) f(std::integral_constant<int, block_rows>());
  else if (block_rows <= 8 && rows > 4) f(std::integral_constant<int, block_rows>());
  else if (rows > 4) f(std::integral_constant<int, 8>());
  else if (rows > 2) f(std::integral_constant<int, 4>());
  else if (rows > 1) f(std::integral_constant<int, 2>());
  else f(std::integral_constant<int, 1>());
}

/// Scores of Rows query rows against one panel of keys.
template <int Rows>
HWY_INLINE void score_block(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys,
                            std::int64_t depth, float* HWY_RESTRICT scores) {
  Vec sum[Rows][panel_vectors];
  for (auto& row : sum) {
    for (Vec& s : row) s = hn::Zero(df);
  }
  for (std::int64_t d = 0; d < depth; ++d, q += block_rows, keys += panel) {
    Vec k[panel_vectors];
    for (int n = 0; n < panel_vectors; ++n) k[n] = hn::Load(df, keys + n * lanes);
    for (int r = 0; r < Rows; ++r) {
      const Vec x = hn::Set(df, q[r]);
      for (int n = 0; n < panel_vectors; ++n) sum[r][n] = hn::MulAdd(x, k[n], sum[r][n]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int n = 0; n < panel_vectors; ++n) {
      hn::Store(sum[r][n], df, scores + r * key_tile + n * lanes);
    }
  }
}

/// values = values * rescale + P V for Rows rows and one panel of columns; `load_value(j, n)` is
/// vector n of the panel for the j-th key. The tile's own sum is finished before it meets the older
/// ones: one chain over 16384 keys would lose 2e-6.
template <int Rows, class F>
HWY_INLINE void gather_block(const float* HWY_RESTRICT weights, std::int64_t keys, F&& load_value,
                             const float* HWY_RESTRICT rescale, float* HWY_RESTRICT values,
                             std::int64_t stride) {
  Vec sum[Rows][panel_vectors];
  for (auto& row : sum) {
    for (Vec& s : row) s = hn::Zero(df);
  }
  for (std::int64_t j = 0; j < keys; ++j, ++weights) {
    Vec v[panel_vectors];
    for (int n = 0; n < panel_vectors; ++n) v[n] = load_value(j, n);
    for (int r = 0; r < Rows; ++r) {
      const Vec p = hn::Set(df, weights[r * key_tile]);
      for (int n = 0; n < panel_vectors; ++n) sum[r][n] = hn::MulAdd(p, v[n], sum[r][n]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const Vec factor = hn::Set(df, rescale[r]);
    for (int n = 0; n < panel_vectors; ++n) {
      float* o = values + r * stride + n * lanes;
      hn::Store(hn::MulAdd(hn::Load(df, o), factor, sum[r][n]), df, o);
    }
  }
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard per target
