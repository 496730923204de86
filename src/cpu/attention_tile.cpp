// SPDX-License-Identifier: Apache-2.0
// Softmax attention of a tile of query rows, in vectors; docs/kernels/cpu-attention.md explains it.
//
//   for each tile of 128 keys                                        arrays (fp32)
//     pack    K into panels with the keys in the lanes, V as it is   keys, values
//     score   S = Q K^T, blocks of rows x a panel of keys            scores
//     soften  m' = max(m, S), P = 2^((S - m') c), l = l a + sum P    scores, part.maximum, part.sum
//     gather  O = O a + P V, blocks of rows x a panel of columns     part.values
//
// A row's bits depend on nothing but the row: every sum runs over the keys in order, in one chain
// per key tile; a key that the row does not see adds an exact 0, so that whether a neighbour made
// the loops visit it changes nothing; and a block with fewer rows runs the same chains.
#include "cpu/attention_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_tile.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/attention_pack-inl.h"
#include "cpu/simd_math-inl.h"

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

constexpr hn::RebindToSigned<Floats> di;
constexpr float infinity = std::numeric_limits<float>::infinity();

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

/// values = values * rescale + P V for Rows rows and one panel of columns. The tile's own sum is
/// finished before it meets the older ones: one chain over 16384 keys would lose 2e-6.
template <int Rows>
HWY_INLINE void gather_block(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT panel_v,
                             std::int64_t keys, const float* HWY_RESTRICT rescale,
                             float* HWY_RESTRICT values, std::int64_t stride) {
  Vec sum[Rows][panel_vectors];
  for (auto& row : sum) {
    for (Vec& s : row) s = hn::Zero(df);
  }
  for (std::int64_t j = 0; j < keys; ++j, ++weights, panel_v += panel) {
    Vec v[panel_vectors];
    for (int n = 0; n < panel_vectors; ++n) v[n] = hn::Load(df, panel_v + n * lanes);
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

/// Keys [begin, end) of one tile, counted from the tile's first key.
struct TileKeys {
  std::int64_t first = 0;  ///< of the tile, in the sequence
  std::int64_t begin = 0, end = 0;

  KeyRange of(const KeyRange& visible) const {
    return {std::max(begin, visible.begin - first), std::min(end, visible.end - first)};
  }
  /// What at least one of the rows sees.
  KeyRange of(std::span<const TileRow> rows) const {
    return of(KeyRange{rows.front().visible.begin, rows.back().visible.end});
  }
};

/// Scale, softcap and ALiBi of the visible scores of a row.
void shape_scores(const ScoreRule& rule, const TileRow& row, std::int64_t first, KeyRange keys,
                  float* scores) {
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

/// Replaces the scores of `block` keys by weights and returns what the older sums are multiplied
/// with. `keys` are the ones that this row sees.
float soften_row(const ScoreRule& rule, KeyRange keys, KeyRange block, float* scores,
                 float& maximum, float& sum) {
  if (keys.empty()) {
    if (!block.empty()) std::fill(scores + block.begin, scores + block.end, 0.0F);
    return 1;
  }
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
  mask_vector(begin);
  mask_vector(end - lanes);

  Vec largest = lowest;
  for (std::int64_t j = begin; j < end; j += lanes) {
    largest = hn::Max(largest, hn::Load(df, scores + j));
  }
  const float old_maximum = maximum;
  maximum = std::max(old_maximum, hn::GetLane(hn::MaxOfLanes(df, largest)));
  // With nothing but -inf so far, subtract 0: inf - inf would be NaN.
  const float subtract = maximum == -infinity ? 0 : maximum;
  const Vec m = hn::Set(df, subtract);
  const Vec factor = hn::Set(df, rule.log2_factor);

  Vec total = hn::Zero(df);
  for (std::int64_t j = begin; j < end; j += lanes) {
    const Vec p = exp2(df, hn::Mul(hn::Sub(hn::Load(df, scores + j), m), factor));
    total = hn::Add(total, p);
    hn::Store(p, df, scores + j);
  }
  if (begin > block.begin) std::fill(scores + block.begin, scores + begin, 0.0F);
  if (end < block.end) std::fill(scores + end, scores + block.end, 0.0F);

  const Vec old = hn::Set(df, (old_maximum - subtract) * rule.log2_factor);
  const float rescale = hn::GetLane(exp2(df, old));
  sum = sum * rescale + hn::GetLane(hn::SumOfLanes(df, total));
  return rescale;
}

/// Fetches rows that are packed next into the cache, a few between one block and the next: all at
/// once they would take as long as the memory does, and nothing would overlap.
class Ahead {
 public:
  Ahead(const KeyRows& rows, std::int64_t begin, std::int64_t end, std::int64_t bytes,
        std::int64_t steps)
      : rows_(rows),
        next_(begin),
        end_(end),
        bytes_(bytes),
        rows_a_step_((key_tile - 1) / steps + 1) {}

  void step() {
    for (const std::int64_t stop = std::min(next_ + rows_a_step_, end_); next_ < stop; ++next_) {
      const std::byte* row = rows_[next_];
      for (std::int64_t at = 0; at < bytes_; at += 64) __builtin_prefetch(row + at, 0, 2);
    }
  }

 private:
  const KeyRows& rows_;
  std::int64_t next_, end_, bytes_, rows_a_step_;
};

/// One tile of keys for all rows: score, soften, gather.
void attend_keys(const AttentionTile& tile, TileKeys keys, const TileScratch& w) {
  const std::int64_t rows = std::ssize(tile.rows);
  const std::int64_t depth = padded_head(tile.problem);
  const std::int64_t columns = padded_value(tile.problem, panel);
  const auto block_at = [&](std::int64_t r) {
    return tile.rows.subspan(
        static_cast<std::size_t>(r),
        static_cast<std::size_t>(std::min<std::int64_t>(block_rows, rows - r)));
  };

  const auto size = static_cast<std::int64_t>(size_of(tile.problem.dtype));
  const std::int64_t blocks = (rows + block_rows - 1) / block_rows;

  with_float_type(tile.problem.dtype,
                  [&]<class T>(T) { pack_keys<T>(tile, keys.first, {keys.begin, keys.end}, w); });
  Ahead values_ahead(tile.v, keys.first + keys.begin, keys.first + keys.end,
                     tile.problem.value_dim * size, key_tile / panel * blocks);
  for (std::int64_t p = keys.begin / panel * panel; p < keys.end; p += panel) {
    for (std::int64_t r = 0; r < rows; r += block_rows) {
      const auto block = block_at(r);
      const KeyRange seen = keys.of(block);
      values_ahead.step();
      if (seen.empty() || seen.end <= p || seen.begin >= p + panel) continue;
      with_block(std::ssize(block), [&](auto n) HWY_ATTR {
        score_block<n()>(w.q + r * depth, w.keys + p * depth, depth, w.scores + r * key_tile + p);
      });
    }
  }

  for (std::int64_t r = 0; r < rows; ++r) {
    const TileRow& row = tile.rows[static_cast<std::size_t>(r)];
    const KeyRange seen = keys.of(row.visible);
    float* scores = w.scores + r * key_tile;
    if (!tile.rule.plain) shape_scores(tile.rule, row, keys.first, seen, scores);
    w.rescale[r] = soften_row(tile.rule, seen, keys.of(block_at(r / block_rows * block_rows)),
                              scores, w.part.maximum[r], w.part.sum[r]);
  }

  const bool finite = with_float_type(tile.problem.dtype, [&]<class T>(T) {
    return pack_values<T>(tile, keys.first, {keys.begin, keys.end}, w);
  });
  const std::int64_t next = keys.first + key_tile;
  Ahead keys_ahead(tile.k, next, std::min(next + key_tile, tile.rows.back().visible.end),
                   tile.problem.head_dim * size, columns / panel * blocks);
  for (std::int64_t c = 0; c < columns; c += panel) {
    const float* panel_v = w.values + c / panel * (key_tile * panel + panel_gap);
    for (std::int64_t r = 0; r < rows; r += block_rows) {
      const auto block = block_at(r);
      const auto gather = [&](auto n, std::int64_t row, KeyRange seen) HWY_ATTR {
        if (seen.empty()) return;
        gather_block<n()>(w.scores + row * key_tile + seen.begin, panel_v + seen.begin * panel,
                          seen.end - seen.begin, w.rescale + row, w.part.values + row * columns + c,
                          columns);
      };
      keys_ahead.step();
      if (finite) {
        with_block(std::ssize(block), [&](auto n) HWY_ATTR { gather(n, r, keys.of(block)); });
        continue;
      }
      // 0 * NaN is NaN: a row must not even be multiplied with values it does not see.
      for (std::int64_t i = 0; i < std::ssize(block); ++i) {
        gather(std::integral_constant<int, 1>(), r + i,
               keys.of(block[static_cast<std::size_t>(i)].visible));
      }
    }
  }
}

void attend(const AttentionTile& tile, std::int64_t split, const TileScratch& w) {
  const std::int64_t rows = std::ssize(tile.rows);
  std::fill_n(w.part.maximum, rows, -infinity);
  std::fill_n(w.part.sum, rows, 0.0F);
  std::fill_n(w.rescale, round_up(rows, block_rows), 0.0F);
  std::fill_n(w.part.values, round_up(rows, block_rows) * padded_value(tile.problem, panel), 0.0F);
  const std::int64_t end = std::min((split + 1) * key_split, tile.rows.back().visible.end);
  for (std::int64_t first = split * key_split; first < end; first += key_tile) {
    const TileKeys all{.first = first, .begin = 0, .end = key_tile};
    const KeyRange seen = all.of(tile.rows);
    if (!seen.empty()) attend_keys(tile, {first, seen.begin, seen.end}, w);
  }
}

bool sees(const TileRow& row, std::int64_t split) {
  return std::max(row.visible.begin, split * key_split) <
         std::min(row.visible.end, (split + 1) * key_split);
}

void merge(const AttentionTile& tile, std::int64_t split, const RowStates& part,
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
    total.sum[r] = hn::GetLane(join(hn::Set(df, total.sum[r]), hn::Set(df, part.sum[r])));
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

void finish(const AttentionTile& tile, const RowStates& total) {
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
      by = total.sum[r];
      lse = maximum + std::log(double{total.sum[r]});
      if (row.sink) {
        const double largest = std::max(maximum, sink);
        const double sum = by * std::exp(maximum - largest) + std::exp(sink - largest);
        by = static_cast<float>(std::exp(maximum - largest) / sum);
        lse = largest + std::log(sum);
      }
    }
    with_float_type(tile.problem.out_dtype, [&]<class Out>(Out) {
      write_row<Out>(values, columns, dims, by, !row.sink, row.out);
    });
    if (row.lse) *row.lse = static_cast<float>(lse);
  }
}

void load_queries(const AttentionTile& tile, const TileScratch& w) {
  with_float_type(tile.problem.dtype, [&]<class T>(T) { pack_queries<T>(tile, w); });
}

bool supported() {
  // Highway asks the processor each time, and under a hypervisor cpuid traps: 50 us a call.
  static const bool yes = (hwy::SupportedTargets() & HWY_TARGET) != 0;
  return yes;
}

}  // namespace

TileKernel kernel(std::string_view name, std::string_view instructions) {
  return {name, instructions, block_rows, panel, supported, load_queries, attend, merge, finish};
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace packattn::cpu {

std::span<const TileKernel> tile_kernels() {
  static const std::vector<TileKernel> kernels = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::kernel("cpu/attention.avx512", "AVX-512"),
#endif
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::kernel("cpu/attention.avx2", "AVX2 and FMA"),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::kernel("cpu/attention.neon", "NEON"),
#endif
  };
  return kernels;
}

}  // namespace packattn::cpu
#endif
