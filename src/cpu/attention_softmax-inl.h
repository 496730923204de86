// SPDX-License-Identifier: Apache-2.0
// What happens to the scores of one row in one tile of keys, and how the results of several splits
// of the keys become the outputs of a row; one copy per Highway target.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

#include "cpu/attention_pack-inl.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_math-inl.h"

#if defined(PACKATTN_CPU_ATTENTION_SOFTMAX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_ATTENTION_SOFTMAX_INL_H
#undef PACKATTN_CPU_ATTENTION_SOFTMAX_INL_H
#else
#define PACKATTN_CPU_ATTENTION_SOFTMAX_INL_H
#endif

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr hn::RebindToSigned<Floats> di;

/// Scale, softcap and ALiBi of the visible scores of a row.
inline void shape_scores(const ScoreRule& rule, const TileRow& row, std::int64_t first,
                         KeyRange keys, float* scores) {
  const Vec scale = hn::Set(df, rule.scale);
  const Vec cap = hn::Set(df, rule.softcap);
  const Vec slope = hn::Set(df, -row.slope);
  const Vec lane = hn::Iota(df, 0.0F);
  for (std::int64_t j = keys.begin / lanes * lanes; j < keys.end; j += lanes) {
    Vec x = hn::Mul(scale, hn::Load(df, scores + j));
    if (rule.softcap > 0) x = hn::Mul(cap, tanh(df, hn::Div(x, cap)));
    if (rule.alibi) {
      const Vec from = hn::Set(df, static_cast<float>(first + j - row.diagonal));
      x = hn::MulAdd(slope, hn::Abs(hn::Add(from, lane)), x);
    }
    hn::Store(x, df, scores + j);
  }
}

/// The largest score of `keys`, which are not empty, in whole vectors: the others in them become
/// -inf.
inline float largest_score(KeyRange keys, float* scores) {
  const std::int64_t begin = keys.begin / lanes * lanes;
  const std::int64_t end = round_up(keys.end, lanes);
  const Vec lowest = hn::Set(df, -infinity);
  const auto mask_vector = [&](std::int64_t j) HWY_ATTR {
    const auto lane = hn::Iota(di, static_cast<std::int32_t>(j));
    const auto before = hn::Lt(lane, hn::Set(di, static_cast<std::int32_t>(keys.begin)));
    const auto within = hn::Lt(lane, hn::Set(di, static_cast<std::int32_t>(keys.end)));
    const Vec x = hn::Load(df, scores + j);
    hn::Store(hn::IfThenElse(hn::RebindMask(df, hn::AndNot(before, within)), x, lowest), df,
              scores + j);
  };
  if (begin < keys.begin) mask_vector(begin);
  if (keys.end < end) mask_vector(end - lanes);

  Vec largest = lowest;
  for (std::int64_t j = begin; j < end; j += lanes) {
    largest = hn::Max(largest, hn::Load(df, scores + j));
  }
  return hn::GetLane(hn::MaxOfLanes(df, largest));
}

/// With nothing but -inf so far, 0 is subtracted: inf - inf would be NaN.
inline float subtracted(float maximum) { return maximum == -infinity ? 0 : maximum; }

/// What the older sums of a row are multiplied with when its maximum grows.
inline float rescale_by(const ScoreRule& rule, float old_maximum, float maximum) {
  if (maximum == old_maximum) return 1;  // 2^0; a row meets its maximum early
  const float exponent = (old_maximum - subtracted(maximum)) * rule.log2_factor;
  return hn::GetLane(exp2(df, hn::Set(df, exponent)));
}

/// Replaces the scores of `block` keys by weights, 0 for all but the ones that this row sees,
/// `keys`. Returns their sum.
inline float weigh_row(const ScoreRule& rule, KeyRange keys, KeyRange block, float maximum,
                       float* scores) {
  if (keys.empty()) {
    if (!block.empty()) std::fill(scores + block.begin, scores + block.end, 0.0F);
    return 0;
  }
  const std::int64_t begin = keys.begin / lanes * lanes;
  const std::int64_t end = round_up(keys.end, lanes);
  const Vec m = hn::Set(df, subtracted(maximum));
  const Vec factor = hn::Set(df, rule.log2_factor);
  Vec total = hn::Zero(df);
  for (std::int64_t j = begin; j < end; j += lanes) {
    const Vec p = exp2(df, hn::Mul(hn::Sub(hn::Load(df, scores + j), m), factor));
    total = hn::Add(total, p);
    hn::Store(p, df, scores + j);
  }
  if (begin > block.begin) std::fill(scores + block.begin, scores + begin, 0.0F);
  if (end < block.end) std::fill(scores + end, scores + block.end, 0.0F);
  return hn::GetLane(hn::SumOfLanes(df, total));
}

inline bool sees(const TileRow& row, std::int64_t split) {
  return std::max(row.visible.begin, split * key_split) <
         std::min(row.visible.end, (split + 1) * key_split);
}

inline void merge(const AttentionTile& tile, std::int64_t split, const RowStates& part,
                  const RowStates& total) {
  const std::int64_t columns = padded_value(tile.problem, panel);
  for (std::int64_t r = 0; r < std::ssize(tile.rows); ++r) {
    const TileRow& row = tile.rows[static_cast<std::size_t>(r)];
    if (!sees(row, split)) continue;
    const float* from = part.values + r * columns;
    float* to = total.values + r * columns;
    if (row.visible.begin >= split * key_split) {  // the first it sees
      total.maximum[r] = part.maximum[r];
      total.sum[r] = part.sum[r];
      total.weight[r] = part.weight[r];
      std::copy_n(from, columns, to);
      continue;
    }
    const float maximum = std::max(total.maximum[r], part.maximum[r]);
    const float subtract = maximum == -infinity ? 0 : maximum;
    const auto factor = [&](float m) HWY_ATTR {
      return exp2(df, hn::Set(df, (m - subtract) * tile.rule.log2_factor));
    };
    const Vec old_factor = factor(total.maximum[r]), new_factor = factor(part.maximum[r]);
    const auto join = [&](Vec x, Vec y)
                          HWY_ATTR { return hn::MulAdd(x, old_factor, hn::Mul(y, new_factor)); };
    for (std::int64_t c = 0; c < columns; c += lanes) {
      hn::Store(join(hn::Load(df, to + c), hn::Load(df, from + c)), df, to + c);
    }
    const auto join_one = [&](float x, float y) HWY_ATTR {
      return hn::GetLane(join(hn::Set(df, x), hn::Set(df, y)));
    };
    total.sum[r] = join_one(total.sum[r], part.sum[r]);
    total.weight[r] = join_one(total.weight[r], part.weight[r]);
    total.maximum[r] = maximum;
  }
}

/// Multiplies or divides a row by `by` and writes it. Adding 0 turns -0 into 0: which of the two a
/// sum of zeros has become depends on keys that do not count.
template <class Out>
void write_row(float* values, std::int64_t columns, std::int64_t dims, float by, bool divide,
               std::byte* out) {
  const Vec scale = hn::Set(df, by);
  for (std::int64_t c = 0; c < columns; c += lanes) {
    const Vec x = hn::Load(df, values + c);
    const Vec y = hn::Add(divide ? hn::Div(x, scale) : hn::Mul(x, scale), hn::Zero(df));
    const Vec quiet = hn::BitCast(df, hn::Set(di, 0x7fc00000));
    hn::Store(hn::IfThenElse(hn::Eq(y, y), y, quiet), df, values + c);
  }
  narrow(values, static_cast<std::size_t>(dims), reinterpret_cast<Out*>(out));
}

inline void finish(const AttentionTile& tile, const RowStates& total) {
  const std::int64_t dims = tile.problem.value_dim;
  const std::int64_t columns = padded_value(tile.problem, panel);
  for (std::int64_t r = 0; r < std::ssize(tile.rows); ++r) {
    const TileRow& row = tile.rows[static_cast<std::size_t>(r)];
    float* values = total.values + r * columns;
    const double sink = row.sink ? double{*row.sink} : -double{infinity};
    float by = 1;
    double lse = sink;
    if (row.visible.empty()) {
      std::fill_n(values, columns, 0.0F);
    } else {
      const double maximum = total.maximum[r] * tile.rule.lse_factor + row.lse_offset;
      by = total.weight[r];
      lse = maximum + std::log(double{total.sum[r]});
      if (row.sink) {
        const double largest = std::max(maximum, sink);
        const double own = std::exp(maximum - largest), other = std::exp(sink - largest);
        by = static_cast<float>(own / (by * own + other));
        lse = largest + std::log(total.sum[r] * own + other);
      }
    }
    with_float_type(tile.problem.out_dtype, [&]<class Out>(Out) {
      write_row<Out>(values, columns, dims, by, !row.sink, row.out);
    });
    if (row.lse) *row.lse = static_cast<float>(lse);
  }
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard per target
