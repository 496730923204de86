// SPDX-License-Identifier: Apache-2.0
// The loops over the keys, blocks and panels of a tile, for any way to compute the two products;
// one copy per Highway target. `Products` has the static functions
//   query_floats, pack_keys, score<rows>, weights_of, round_weights, pack_values, gather<rows>,
//   gather_alone, gather_directly
// as attention_tile.cpp defines them for fp32.
#include <algorithm>
#include <cstdint>
#include <span>

#include <hwy/highway.h>

#include "cpu/attention_blocks-inl.h"
#include "cpu/attention_pack-inl.h"
#include "cpu/attention_softmax-inl.h"
#include "cpu/attention_tile.h"

#if defined(PACKATTN_CPU_ATTENTION_LOOP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_ATTENTION_LOOP_INL_H
#undef PACKATTN_CPU_ATTENTION_LOOP_INL_H
#else
#define PACKATTN_CPU_ATTENTION_LOOP_INL_H
#endif

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {

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

/// The rows of a tile in blocks, and what each block sees of a tile of keys.
struct Block {
  std::int64_t first = 0;
  std::span<const TileRow> rows;
  KeyRange seen;
};

template <class F>
HWY_INLINE void for_each_block(const AttentionTile& tile, const TileKeys& keys, F&& f) {
  const std::int64_t rows = std::ssize(tile.rows);
  for (std::int64_t r = 0; r < rows; r += block_rows) {
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(block_rows, rows - r));
    const auto block = tile.rows.subspan(static_cast<std::size_t>(r), count);
    f(Block{r, block, keys.of(block)});
  }
}

inline std::int64_t blocks_of(const AttentionTile& tile) {
  return (std::ssize(tile.rows) + block_rows - 1) / block_rows;
}

/// Whether values may be taken from the tensor itself: few rows, which all see the same keys.
inline bool may_gather_directly(const AttentionTile& tile) {
  const KeyRange first = tile.rows.front().visible, last = tile.rows.back().visible;
  return std::ssize(tile.rows) <= direct_rows && tile.problem.value_dim % panel == 0 &&
         first.begin == last.begin && first.end == last.end;
}

/// S = Q K^T, one panel of keys after the other.
template <class Products>
void score(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w, Ahead& ahead) {
  for (std::int64_t p = keys.begin / panel * panel; p < keys.end; p += panel) {
    for_each_block(tile, keys, [&](const Block& block) HWY_ATTR {
      ahead.step();
      if (block.seen.empty() || block.seen.end <= p || block.seen.begin >= p + panel) return;
      with_block(std::ssize(block.rows), [&](auto rows) HWY_ATTR {
        Products::template score<rows()>(tile, w, block.first, p);
      });
    });
  }
}

/// Scores become weights. First the maxima of all rows of a block, then their weights: a maximum is
/// a long chain, and only those of other rows run beside it.
template <class Products>
void soften(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
  for_each_block(tile, keys, [&](const Block& block) HWY_ATTR {
    const KeyRange written = Products::weights_of(block.seen);
    const auto for_each_row = [&](auto&& f) HWY_ATTR {
      for (std::int64_t i = 0; i < std::ssize(block.rows); ++i) {
        const std::int64_t r = block.first + i;
        const TileRow& row = block.rows[static_cast<std::size_t>(i)];
        f(row, r, keys.of(row.visible), w.scores + r * key_tile);
      }
    };
    for_each_row([&](const TileRow& row, std::int64_t r, KeyRange seen, float* scores) HWY_ATTR {
      w.rescale[r] = 1;
      if (seen.empty()) return;
      if (!tile.rule.plain) shape_scores(tile.rule, row, keys.first, seen, scores);
      const float old = w.part.maximum[r];
      w.part.maximum[r] = std::max(old, largest_score(seen, scores));
      w.rescale[r] = rescale_by(tile.rule, old, w.part.maximum[r]);
    });
    for_each_row([&](const TileRow&, std::int64_t r, KeyRange seen, float* scores) HWY_ATTR {
      const float sum = weigh_row(tile.rule, seen, written, w.part.maximum[r], scores);
      const float weight = Products::round_weights(scores, written, sum);
      w.part.sum[r] = w.part.sum[r] * w.rescale[r] + sum;
      w.part.weight[r] = w.part.weight[r] * w.rescale[r] + weight;
    });
  });
}

/// O = O * rescale + P V, one panel of columns after the other.
template <class Products>
void gather(const AttentionTile& tile, const TileKeys& keys, bool finite, const TileScratch& w,
            Ahead& ahead) {
  const std::int64_t columns = padded_value(tile.problem, panel);
  for (std::int64_t c = 0; c < columns; c += panel) {
    for_each_block(tile, keys, [&](const Block& block) HWY_ATTR {
      ahead.step();
      if (finite) {
        if (block.seen.empty()) return;
        with_block(std::ssize(block.rows), [&](auto rows) HWY_ATTR {
          Products::template gather<rows()>(tile, w, block.first, c, block.seen);
        });
        return;
      }
      // 0 * NaN is NaN: a row must not even be multiplied with values it does not see.
      for (std::int64_t i = 0; i < std::ssize(block.rows); ++i) {
        const KeyRange seen = keys.of(block.rows[static_cast<std::size_t>(i)].visible);
        if (!seen.empty()) Products::gather_alone(tile, w, block.first + i, c, seen);
      }
    });
  }
}

/// Rows [first, first + count) of a tile as a tile of their own. They share the memory for scores.
inline AttentionTile rows_of(const AttentionTile& tile, std::int64_t first, std::int64_t count) {
  const auto rows =
      tile.rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  return {tile.problem, tile.rule, rows, tile.k, tile.v};
}
template <class Products>
TileScratch scratch_of(const AttentionTile& tile, TileScratch w, std::int64_t first) {
  w.q += first * Products::query_floats(tile.problem);
  w.rescale += first;
  w.part.maximum += first;
  w.part.sum += first;
  w.part.weight += first;
  w.part.values += first * padded_value(tile.problem, panel);
  return w;
}

/// Packs one tile of keys and its values, then scores, softens and gathers, some rows at a time:
/// their scores stay in the caches, while many rows share what packing costs.
template <class Products>
void attend_keys(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
  const auto size = static_cast<std::int64_t>(size_of(tile.problem.dtype));
  const std::int64_t rows = std::ssize(tile.rows), blocks = blocks_of(tile);
  const std::int64_t columns = padded_value(tile.problem, panel);
  const std::int64_t next = keys.first + key_tile;
  const std::int64_t next_end = std::min(next + key_tile, tile.rows.back().visible.end);
  Ahead next_keys(tile.k, next, next_end, tile.problem.head_dim * size, columns / panel * blocks);

  Products::pack_keys(tile, keys, w);
  if (may_gather_directly(tile)) {
    Ahead values(tile.v, keys.first + keys.begin, keys.first + keys.end,
                 tile.problem.value_dim * size, key_tile / panel * blocks);
    score<Products>(tile, keys, w, values);
    soften<Products>(tile, keys, w);
    Products::gather_directly(tile, keys, w, next_keys);
    return;
  }
  const bool finite = Products::pack_values(tile, keys, w);
  Ahead next_values(tile.v, next, next_end, tile.problem.value_dim * size,
                    key_tile / panel * blocks);
  for (std::int64_t first = 0; first < rows; first += score_rows) {
    const AttentionTile some = rows_of(tile, first, std::min(score_rows, rows - first));
    const TileScratch at = scratch_of<Products>(tile, w, first);
    score<Products>(some, keys, at, next_values);
    soften<Products>(some, keys, at);
    gather<Products>(some, keys, finite, at, next_keys);
  }
}

/// One split of the keys, tile after tile.
template <class Products>
void attend_split(const AttentionTile& tile, std::int64_t split, const TileScratch& w) {
  const std::int64_t rows = std::ssize(tile.rows);
  const std::int64_t padded_rows = round_up(rows, block_rows);
  std::fill_n(w.part.maximum, rows, -infinity);
  std::fill_n(w.part.sum, rows, 0.0F);
  std::fill_n(w.part.weight, rows, 0.0F);
  std::fill_n(w.rescale, padded_rows, 0.0F);
  std::fill_n(w.part.values, padded_rows * padded_value(tile.problem, panel), 0.0F);
  const std::int64_t end = std::min((split + 1) * key_split, tile.rows.back().visible.end);
  for (std::int64_t first = split * key_split; first < end; first += key_tile) {
    const TileKeys all{.first = first, .begin = 0, .end = key_tile};
    const KeyRange seen = all.of(tile.rows);
    if (seen.empty()) continue;
    attend_keys<Products>(tile, {first, seen.begin, seen.end}, w);
  }
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard per target
