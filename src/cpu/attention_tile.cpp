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
#include <vector>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_tile.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/attention_blocks-inl.h"
#include "cpu/attention_pack-inl.h"
#include "cpu/attention_softmax-inl.h"

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

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

std::int64_t blocks_of(const AttentionTile& tile) {
  return (std::ssize(tile.rows) + block_rows - 1) / block_rows;
}

/// S = Q K^T, one panel of keys after the other.
void score(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w, Ahead ahead) {
  const std::int64_t depth = padded_head(tile.problem);
  for (std::int64_t p = keys.begin / panel * panel; p < keys.end; p += panel) {
    for_each_block(tile, keys, [&](const Block& block) HWY_ATTR {
      ahead.step();
      if (block.seen.empty() || block.seen.end <= p || block.seen.begin >= p + panel) return;
      with_block(std::ssize(block.rows), [&](auto rows) HWY_ATTR {
        score_block<rows()>(w.q + block.first * depth, w.keys + p * depth, depth,
                            w.scores + block.first * key_tile + p);
      });
    });
  }
}

/// Scores become weights.
void soften(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
  for_each_block(tile, keys, [&](const Block& block) HWY_ATTR {
    for (std::int64_t i = 0; i < std::ssize(block.rows); ++i) {
      const TileRow& row = block.rows[static_cast<std::size_t>(i)];
      const std::int64_t r = block.first + i;
      const KeyRange seen = keys.of(row.visible);
      float* scores = w.scores + r * key_tile;
      if (!tile.rule.plain) shape_scores(tile.rule, row, keys.first, seen, scores);
      w.rescale[r] =
          soften_row(tile.rule, seen, block.seen, scores, w.part.maximum[r], w.part.sum[r]);
    }
  });
}

/// O = O * rescale + P V, one panel of columns after the other.
void gather(const AttentionTile& tile, const TileKeys& keys, bool finite, const TileScratch& w,
            Ahead ahead) {
  const std::int64_t columns = padded_value(tile.problem, panel);
  for (std::int64_t c = 0; c < columns; c += panel) {
    const float* values = w.values + c / panel * (key_tile * panel + panel_gap);
    const auto gather_rows = [&](auto rows, std::int64_t r, KeyRange seen) HWY_ATTR {
      if (seen.empty()) return;
      const float* from = values + seen.begin * panel;
      const auto packed = [from](std::int64_t j, int n)
                              HWY_ATTR { return hn::Load(df, from + j * panel + n * lanes); };
      gather_block<rows()>(w.scores + r * key_tile + seen.begin, seen.end - seen.begin, packed,
                           w.rescale + r, w.part.values + r * columns + c, columns);
    };
    for_each_block(tile, keys, [&](const Block& block) HWY_ATTR {
      ahead.step();
      if (finite) {
        with_block(std::ssize(block.rows),
                   [&](auto rows) HWY_ATTR { gather_rows(rows, block.first, block.seen); });
        return;
      }
      // 0 * NaN is NaN: a row must not even be multiplied with values it does not see.
      for (std::int64_t i = 0; i < std::ssize(block.rows); ++i) {
        const TileRow& row = block.rows[static_cast<std::size_t>(i)];
        gather_rows(std::integral_constant<int, 1>(), block.first + i, keys.of(row.visible));
      }
    });
  }
}

/// The same for `direct_rows` rows or fewer that all see all of `keys`, from the tensor itself.
template <class T>
void gather_directly(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w,
                     Ahead ahead) {
  const std::int64_t columns = padded_value(tile.problem, panel);
  const T* rows[key_tile];
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    rows[j] = reinterpret_cast<const T*>(tile.v[keys.first + j]);
  }
  for (std::int64_t c = 0; c < columns; c += panel) {
    ahead.step();
    const T* const* from = rows + keys.begin;
    const auto direct = [from, c](std::int64_t j, int n)
                            HWY_ATTR { return load_floats(df, from[j] + c + n * lanes); };
    with_block(std::ssize(tile.rows), [&](auto count) HWY_ATTR {
      gather_block<count()>(w.scores + keys.begin, keys.end - keys.begin, direct, w.rescale,
                            w.part.values + c, columns);
    });
  }
}

bool same_keys(const AttentionTile& tile) {
  const KeyRange first = tile.rows.front().visible, last = tile.rows.back().visible;
  return first.begin == last.begin && first.end == last.end;
}

template <class T>
void attend_keys(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
  constexpr auto size = std::int64_t{sizeof(T)};
  const std::int64_t blocks = blocks_of(tile);
  const std::int64_t next = keys.first + key_tile;
  const KeyRange range{keys.begin, keys.end};

  pack_keys<T>(tile, keys.first, range, w);
  score(tile, keys, w,
        Ahead(tile.v, keys.first + keys.begin, keys.first + keys.end, tile.problem.value_dim * size,
              key_tile / panel * blocks));
  soften(tile, keys, w);
  const Ahead next_keys(tile.k, next, std::min(next + key_tile, tile.rows.back().visible.end),
                        tile.problem.head_dim * size,
                        padded_value(tile.problem, panel) / panel * blocks);
  if (std::ssize(tile.rows) <= direct_rows && tile.problem.value_dim % panel == 0 &&
      same_keys(tile)) {
    gather_directly<T>(tile, keys, w, next_keys);
    return;
  }
  const bool finite = pack_values<T>(tile, keys.first, range, w);
  gather(tile, keys, finite, w, next_keys);
}

void attend(const AttentionTile& tile, std::int64_t split, const TileScratch& w) {
  const std::int64_t rows = std::ssize(tile.rows);
  const std::int64_t padded_rows = round_up(rows, block_rows);
  std::fill_n(w.part.maximum, rows, -infinity);
  std::fill_n(w.part.sum, rows, 0.0F);
  std::fill_n(w.rescale, padded_rows, 0.0F);
  std::fill_n(w.part.values, padded_rows * padded_value(tile.problem, panel), 0.0F);
  const std::int64_t end = std::min((split + 1) * key_split, tile.rows.back().visible.end);
  for (std::int64_t first = split * key_split; first < end; first += key_tile) {
    const TileKeys all{.first = first, .begin = 0, .end = key_tile};
    const KeyRange seen = all.of(tile.rows);
    if (seen.empty()) continue;
    with_float_type(tile.problem.dtype,
                    [&]<class T>(T) { attend_keys<T>(tile, {first, seen.begin, seen.end}, w); });
  }
}

void load_queries(const AttentionTile& tile, const TileScratch& w) {
  with_float_type(tile.problem.dtype, [&]<class T>(T) { pack_queries<T>(tile, w); });
}

}  // namespace

TileKernel kernel(std::string_view name) {
  return {name, HWY_TARGET, block_rows, panel, load_queries, attend, merge, finish};
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace packattn::cpu {

std::span<const TileKernel> tile_kernels() {
  static const std::vector<TileKernel> kernels = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::kernel("cpu/attention.avx512"),
#endif
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::kernel("cpu/attention.avx2"),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::kernel("cpu/attention.neon"),
#endif
  };
  return kernels;
}

}  // namespace packattn::cpu
#endif
