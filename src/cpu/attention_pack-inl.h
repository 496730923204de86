// SPDX-License-Identifier: Apache-2.0
// Brings rows of q, k and v of any of the three types into the fp32 blocks and panels that the
// kernels of attention_tile.cpp read; one copy per Highway target.
#include <algorithm>
#include <cstdint>

#include <hwy/highway.h>

#include "cpu/attention_tile.h"
#include "cpu/simd_math-inl.h"

#if defined(PACKATTN_CPU_ATTENTION_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_ATTENTION_PACK_INL_H
#undef PACKATTN_CPU_ATTENTION_PACK_INL_H
#else
#define PACKATTN_CPU_ATTENTION_PACK_INL_H
#endif

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using Vec = hn::Vec<Floats>;
inline constexpr Floats df;
inline constexpr int lanes = static_cast<int>(hn::MaxLanes(Floats()));

// Rows x vectors held in registers: 24 of 32, or 12 of AVX2's 16. Two vectors wide, a panel of keys
// of 128 dimensions stays in the first-level cache while all rows pass over it.
inline constexpr int block_rows = HWY_TARGET == HWY_AVX2 ? 6 : 12;
inline constexpr int panel_vectors = 2;
inline constexpr int panel = panel_vectors * lanes;

/// Four dimensions of as many keys as a vector has lanes. Lane 4 b + i of result d is rows[4 b +
/// i][d]: the loads put four keys' blocks of four dimensions in place, a 4 x 4 transpose in every
/// block does the rest.
struct FourDims { Vec dim[4]; };

template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* const* rows, std::int64_t dim) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, rows[0] + dim);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, rows + hn::MaxLanes(half), dim),
                       load_blocks(half, rows, dim));
  }
}

HWY_INLINE FourDims transpose_dims(const float* const* rows, std::int64_t dim) {
  const hn::Repartition<double, Floats> dd;
  const auto pair = [&](Vec x) HWY_ATTR { return hn::BitCast(dd, x); };
  const Vec a = load_blocks(df, rows, dim), b = load_blocks(df, rows + 1, dim);
  const Vec c = load_blocks(df, rows + 2, dim), e = load_blocks(df, rows + 3, dim);
  const auto ab_low = pair(hn::InterleaveLower(df, a, b));
  const auto ab_high = pair(hn::InterleaveUpper(df, a, b));
  const auto ce_low = pair(hn::InterleaveLower(df, c, e));
  const auto ce_high = pair(hn::InterleaveUpper(df, c, e));
  return {{hn::BitCast(df, hn::InterleaveLower(dd, ab_low, ce_low)),
           hn::BitCast(df, hn::InterleaveUpper(dd, ab_low, ce_low)),
           hn::BitCast(df, hn::InterleaveLower(dd, ab_high, ce_high)),
           hn::BitCast(df, hn::InterleaveUpper(dd, ab_high, ce_high))}};
}

/// Panels [head_dim, panel] of the keys `range` of the tile that starts at key `first`; other keys
/// of a panel are zeros, and not read.
template <class T>
void pack_keys(const AttentionTile& tile, std::int64_t first, KeyRange range,
               const TileScratch& w) {
  const std::int64_t dims = tile.problem.head_dim;
  const std::int64_t depth = padded_head(tile.problem);
  const bool in_place = std::is_same_v<T, float> && dims == depth;
  for (std::int64_t p = range.begin / panel * panel; p < range.end; p += panel) {
    const float* rows[panel];
    for (std::int64_t i = 0; i < panel; ++i) {
      float* copy = w.widened + i * depth;
      rows[i] = copy;
      if (p + i < range.begin || p + i >= range.end) {
        std::fill_n(copy, depth, 0.0F);
        continue;
      }
      const auto* key = reinterpret_cast<const T*>(tile.k[first + p + i]);
      if constexpr (std::is_same_v<T, float>) {
        if (in_place) {
          rows[i] = key;
          continue;
        }
      }
      widen(key, dims, depth, copy);
    }
    float* to = w.keys + p * depth;
    for (std::int64_t d = 0; d < depth; d += 4) {
      for (int n = 0; n < panel_vectors; ++n) {
        const FourDims four = transpose_dims(rows + n * lanes, d);
        for (int i = 0; i < 4; ++i) hn::Store(four.dim[i], df, to + (d + i) * panel + n * lanes);
      }
    }
  }
}

/// Panels [key_tile, panel] of value columns. False if some value is not finite.
template <class T>
bool pack_values(const AttentionTile& tile, std::int64_t first, KeyRange range,
                 const TileScratch& w) {
  const std::int64_t dims = tile.problem.value_dim;
  const std::int64_t columns = padded_value(tile.problem, panel);
  const hn::RebindToSigned<Floats> di;
  const Vec zero = hn::Zero(df);
  auto largest = hn::Zero(di);  // magnitude, as bits: infinity and NaN are above everything else
  for (std::int64_t j = range.begin; j < range.end; ++j) {
    const auto* row = reinterpret_cast<const T*>(tile.v[first + j]);
    for (std::int64_t c = 0; c < columns; c += lanes) {
      Vec x = zero;
      if (c + lanes <= dims) {
        x = load_floats(df, row + c);
      } else if (c < dims) {
        HWY_ALIGN float rest[lanes];
        widen(row + c, dims - c, lanes, rest);
        x = hn::Load(df, rest);
      }
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(x)));
      float* to = w.values + c / panel * (key_tile * panel + panel_gap);
      hn::Store(x, df, to + j * panel + c % panel);
    }
  }
  return hn::AllTrue(di, hn::Lt(largest, hn::Set(di, 0x7f800000)));
}

/// Blocks [head_dim, block_rows] of query rows; missing rows and dimensions are zeros.
template <class T>
void pack_queries(const AttentionTile& tile, const TileScratch& w) {
  const std::int64_t depth = padded_head(tile.problem);
  const std::int64_t rows = std::ssize(tile.rows);
  for (std::int64_t r = 0; r < round_up(rows, block_rows); ++r) {
    std::fill_n(w.widened, depth, 0.0F);
    if (r < rows) {
      widen(reinterpret_cast<const T*>(tile.rows[static_cast<std::size_t>(r)].q),
            tile.problem.head_dim, depth, w.widened);
    }
    float* to = w.q + r / block_rows * block_rows * depth + r % block_rows;
    for (std::int64_t d = 0; d < depth; ++d) to[d * block_rows] = w.widened[d];
  }
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard per target
