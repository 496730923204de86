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
/// So few rows may take their values straight from the tensor.
inline constexpr int direct_rows = 4;

/// 16 bytes of as many rows as a vector has lanes, transposed in units of 4 bytes: lane n of unit i
/// is bytes [at + 4 i, at + 4 i + 4) of rows[n]. The loads put the 16 bytes of four rows into the
/// four blocks that end up beside each other; a 4 x 4 transpose in every block does the rest.
template <class D>
struct Units {
  hn::Vec<D> unit[4];
};

template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const std::byte* const* rows, std::int64_t at) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    const hn::Repartition<std::uint8_t, D> d8;  // rows are only as aligned as their elements
    return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(rows[0] + at)));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, rows + hn::MaxLanes(half), at),
                       load_blocks(half, rows, at));
  }
}

template <class D>
HWY_INLINE Units<D> transpose_units(D d, const std::byte* const* rows, std::int64_t at) {
  const hn::Repartition<double, D> dd;
  const auto a = load_blocks(d, rows, at), b = load_blocks(d, rows + 1, at);
  const auto c = load_blocks(d, rows + 2, at), e = load_blocks(d, rows + 3, at);
  const auto ab_low = hn::BitCast(dd, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(dd, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(dd, hn::InterleaveLower(d, c, e));
  const auto ce_high = hn::BitCast(dd, hn::InterleaveUpper(d, c, e));
  return {{hn::BitCast(d, hn::InterleaveLower(dd, ab_low, ce_low)),
           hn::BitCast(d, hn::InterleaveUpper(dd, ab_low, ce_low)),
           hn::BitCast(d, hn::InterleaveLower(dd, ab_high, ce_high)),
           hn::BitCast(d, hn::InterleaveUpper(dd, ab_high, ce_high))}};
}

/// Widens the elements of a unit, one or two dimensions of as many rows as there are lanes, and
/// stores each dimension `stride` floats after the one before.
template <class D>
HWY_INLINE void store_unit(D d, hn::Vec<D> unit, float /*type*/, float* to, std::int64_t) {
  hn::Store(unit, d, to);
}
template <class D>
HWY_INLINE void store_unit(D d, hn::Vec<D> unit, BFloat16 /*type*/, float* to,
                           std::int64_t stride) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, unit);
  hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, to);
  hn::Store(hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000U))), d, to + stride);
}
template <class D>
HWY_INLINE void store_unit(D d, hn::Vec<D> unit, Half /*type*/, float* to, std::int64_t stride) {
  const hn::RebindToSigned<D> d_signed;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> half;
  const auto bits = hn::BitCast(du, unit);
  const auto widened = [&](auto x) HWY_ATTR {
    return hn::PromoteTo(d, hn::BitCast(half, hn::DemoteTo(d16, hn::BitCast(d_signed, x))));
  };
  hn::Store(widened(hn::And(bits, hn::Set(du, 0xffffU))), d, to);
  hn::Store(widened(hn::ShiftRight<16>(bits)), d, to + stride);
}

/// One panel [dimension, panel] from `bytes` bytes of each row. Eight rows at a time: the addresses
/// of 16 or 32 do not fit into the general registers, and moving them cost a third of the time.
template <class T>
HWY_INLINE void pack_panel(const std::byte* const* rows, std::int64_t bytes, float* to) {
  const hn::CappedTag<float, 8> d;
  constexpr int group = static_cast<int>(hn::MaxLanes(hn::CappedTag<float, 8>()));
  constexpr std::int64_t unit_floats = 4 / sizeof(T) * panel;
  for (int n = 0; n < panel; n += group) {
    float* lane = to + n;
    for (std::int64_t at = 0; at < bytes; at += 16, lane += 4 * unit_floats) {
      const auto units = transpose_units(d, rows + n, at);
      for (int i = 0; i < 4; ++i) store_unit(d, units.unit[i], T(), lane + i * unit_floats, panel);
    }
  }
}

/// Panels [head_dim, panel] of the keys `range` of the tile that starts at key `first`; other keys
/// of a panel are zeros, and not read.
template <class T>
void pack_keys(const AttentionTile& tile, std::int64_t first, KeyRange range,
               const TileScratch& w) {
  const std::int64_t dims = tile.problem.head_dim;
  const std::int64_t depth = padded_head(tile.problem);
  const std::int64_t bytes = dims * std::int64_t{sizeof(T)};
  const bool in_place = bytes % 16 == 0;
  for (std::int64_t p = range.begin / panel * panel; p < range.end; p += panel) {
    const std::byte* rows[panel];
    for (std::int64_t i = 0; i < panel; ++i) {
      const std::int64_t j = p + i;
      float* copy = w.widened + i * depth;
      rows[i] = reinterpret_cast<const std::byte*>(copy);
      if (j < range.begin || j >= range.end) std::fill_n(copy, depth, 0.0F);
      else if (in_place) rows[i] = tile.k[first + j];
      else widen(reinterpret_cast<const T*>(tile.k[first + j]), dims, depth, copy);
    }
    if (in_place) pack_panel<T>(rows, bytes, w.keys + p * depth);
    else pack_panel<float>(rows, depth * std::int64_t{sizeof(float)}, w.keys + p * depth);
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

/// Blocks [bytes / 4, block_rows] of 4-byte units: `bytes` of each query row, as `copy_row` writes
/// it to the memory it is given. Missing rows are zeros.
template <class F>
void pack_query_blocks(const AttentionTile& tile, const TileScratch& w, std::int64_t bytes,
                       F&& copy_row) {
  const hn::FixedTag<float, 4> d4;
  const std::int64_t units = bytes / 4;
  const std::int64_t rows = std::ssize(tile.rows);
  for (std::int64_t first = 0; first < rows; first += block_rows) {
    const std::byte* copies[block_rows + 2];
    for (std::int64_t i = 0; i < block_rows + 2; ++i) {
      float* copy = w.widened + std::min<std::int64_t>(i, block_rows - 1) * units;
      copies[i] = reinterpret_cast<const std::byte*>(copy);
      if (i >= block_rows) continue;
      if (first + i >= rows) std::fill_n(copy, units, 0.0F);
      else copy_row(tile.rows[static_cast<std::size_t>(first + i)].q, copy);
    }
    float* to = w.q + first * units;
    for (std::int64_t u = 0; u < units; u += 4) {
      for (int r = 0; r < block_rows; r += 4) {
        const auto four = transpose_units(d4, copies + r, u * 4);
        for (int i = 0; i < 4; ++i) {
          float* at = to + (u + i) * block_rows + r;
          if (r + 4 <= block_rows) hn::StoreU(four.unit[i], d4, at);
          else hn::StoreU(hn::LowerHalf(four.unit[i]), hn::Half<decltype(d4)>(), at);
        }
      }
    }
  }
}

/// Query rows as fp32, dimensions padded with zeros.
template <class T>
void pack_queries(const AttentionTile& tile, const TileScratch& w) {
  const std::int64_t dims = tile.problem.head_dim, depth = padded_head(tile.problem);
  pack_query_blocks(tile, w, depth * 4, [&](const std::byte* q, float* to) {
    widen(reinterpret_cast<const T*>(q), dims, depth, to);
  });
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard per target
