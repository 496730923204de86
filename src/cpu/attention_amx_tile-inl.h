// SPDX-License-Identifier: Apache-2.0
// Softmax attention of a tile of query rows on AMX tiles; docs/kernels/amx.md explains it. `Tiles`
// are the processor's, or emulated ones (tests/support/emulated_tiles.h).
//
// A unit is a strip of 32 rows and a block of 128 keys. Three units are in work at a time, in one
// stream of instructions: while the vector units soften unit u, the tile unit computes the scores
// of u + 1 and gathers the values of u - 1.
//
//   score   S^T = K Q^T      32 keys x 32 rows at a time, D / 32 steps        scores[u % 2]
//   soften  P = 2^((S - m) c), a row a lane; sums                             weights[u % 2]
//   gather  O^T += V^T P^T   32 columns x 32 rows at a time                   part.values
//
// A row's bits depend on nothing but the row: lanes do not mix; every sum runs over the keys from
// key 0 on, block by block; a key that a row does not see adds an exact 0, whether it is visited or
// not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cpu/attention_amx.h"
#include "cpu/attention_amx_few-inl.h"
#include "cpu/attention_amx_finish-inl.h"
#include "cpu/attention_amx_pack-inl.h"
#include "cpu/attention_amx_softmax-inl.h"

namespace packattn::cpu {
namespace {

struct Unit {
  std::int64_t strip = 0;
  std::int64_t first_key = 0;       ///< of the block
  std::int64_t begin = 0, end = 0;  ///< groups of the block that some row sees
  bool masked = false;              ///< some row does not see all of them
  bool first = false;               ///< of its strip
  std::span<const TileRow> rows;
  PackedKeys packed;
};

/// The units of a tile and a split: strip by strip, so that a strip's queries and sums stay in the
/// first-level cache while keys and values stream through it.
class Units {
 public:
  using Pack = void (*)(const AttentionProblem&, const KeyRows&, const KeyRows&, KeyRange,
                        std::int64_t, const PackedKeys&);

  Units(const AttentionTile& tile, std::int64_t split, const PackedKeys* shared, Pack pack,
        const AmxScratch& w)
      : tile_(tile), shared_(shared), pack_(pack), scratch_(w), split_(split * key_split) {}

  bool next(Unit& unit) {
    for (; strip_ * strip_rows < std::ssize(tile_.rows); ++strip_, block_ = -1) {
      const auto first = static_cast<std::size_t>(strip_ * strip_rows);
      const auto rows =
          tile_.rows.subspan(first, std::min<std::size_t>(strip_rows, tile_.rows.size() - first));
      const std::int64_t begin = std::max(split_, rows.front().visible.begin);
      const std::int64_t end = std::min(split_ + key_split, rows.back().visible.end);
      const bool first_block = block_ < 0;
      block_ = first_block ? begin / block_keys * block_keys : block_ + block_keys;
      if (block_ >= end || begin >= end) continue;
      take(unit, rows, {std::max(begin, block_), std::min(end, block_ + block_keys)});
      unit.first = first_block;
      return true;
    }
    return false;
  }

 private:
  void take(Unit& unit, std::span<const TileRow> rows, KeyRange seen) {
    unit = {.strip = strip_,
            .first_key = block_,
            .begin = (seen.begin - block_) / group_keys,
            .end = (seen.end - block_ + group_keys - 1) / group_keys,
            .rows = rows,
            .packed = {}};
    unit.masked = rows.back().visible.begin > block_ + unit.begin * group_keys ||
                  rows.front().visible.end < block_ + unit.end * group_keys;
    if (shared_ != nullptr) {
      unit.packed = *shared_;
      return;
    }
    unit.packed = scratch_.blocks[blocks_packed_++ % 3];  // three units are in work
    unit.packed.first_group = block_ / group_keys + unit.begin;
    pack_(tile_.problem, tile_.k, tile_.v, {unit.packed.first_group * group_keys, seen.end},
          rows.back().visible.end, unit.packed);
  }

  const AttentionTile& tile_;
  const PackedKeys* shared_;
  Pack pack_;
  const AmxScratch& scratch_;
  std::int64_t split_;  ///< its first key
  std::int64_t strip_ = 0, block_ = -1;
  std::int64_t blocks_packed_ = 0;
};

template <class Tiles, int terms>
class Attend {
 public:
  Attend(const AttentionTile& tile, const AmxScratch& w)
      : tile_(tile), w_(w), shape_(tile.problem) {}

  void operator()(std::int64_t split, const PackedKeys* shared) {
    clear();
    gather_all(split, shared);
    if (odd_found_) {
      const std::int64_t strips = (std::ssize(tile_.rows) + strip_rows - 1) / strip_rows;
      for (std::int64_t i = 0; i < strips * shape_.value_strip_floats(); ++i) {
        w_.part.values[i] += w_.odd_values[i];
      }
    }
  }

 private:
  __attribute__((noinline)) void gather_all(std::int64_t split, const PackedKeys* shared) {
    const FlushTiny flush;
    Units units(tile_, split, shared, pack_keys<terms>, w_);
    Unit older, now, newer;
    bool have_older = false, have_now = units.next(now);
    const auto nothing = [](auto) {};
    if (have_now) score(now, parity_, nothing);
    while (have_now || have_older) {
      const bool have_newer = have_now && units.next(newer);
      if (have_now) step(have_older ? &older : nullptr, now, have_newer ? &newer : nullptr);
      else gather(older, (parity_ + 1) % 2, nothing);
      parity_ = (parity_ + 1) % 2;
      older = now;
      now = newer;
      have_older = have_now;
      have_now = have_newer;
    }
  }

  void clear() {
    const std::int64_t rows = round_up(std::ssize(tile_.rows), strip_rows);
    std::fill_n(w_.part.maximum, rows, -infinity);
    std::fill_n(w_.part.sum, rows, 0.0F);
    std::fill_n(w_.part.weight, rows, 0.0F);
    std::fill_n(w_.part.values, rows / strip_rows * shape_.value_strip_floats(), 0.0F);
  }

  /// S^T of a unit into the buffer `parity`. `between` is called after each product, in turn with 0
  /// and 1.
  template <class F>
  __attribute__((always_inline)) void score(const Unit& u, int parity, F&& between) {
    const std::int64_t steps = shape_.head_steps;
    const std::byte* q = w_.q + u.strip * shape_.query_strip_bytes();
    float* scores = w_.scores[parity];
    for (std::int64_t g = u.begin; g < u.end; ++g) {
      const std::byte* k = u.packed.keys + (u.first_key / group_keys + g - u.packed.first_group) *
                                               shape_.key_group_bytes();
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      Tiles::template zero<2>();
      Tiles::template zero<3>();
      for (std::int64_t s = 0; s < steps; ++s) {
        for_score_terms<terms>([&](auto a, auto b, auto load_a,
                                   auto load_b) __attribute__((always_inline)) {
          multiply<load_a, load_b>(k + (a * steps + s) * tile_bytes, terms * steps * tile_bytes,
                                   q + (b * steps + s) * 2 * tile_bytes, tile_bytes, 64, between);
        });
      }
      constexpr std::int64_t row_bytes = strip_rows * std::int64_t{sizeof(float)};
      float* to = scores + g * group_keys * strip_rows;
      Tiles::template store<0>(to, row_bytes);
      Tiles::template store<1>(to + 16, row_bytes);
      Tiles::template store<2>(to + 16 * strip_rows, row_bytes);
      Tiles::template store<3>(to + 16 * strip_rows + 16, row_bytes);
    }
  }

  /// O^T += V^T P^T of a unit.
  template <class F>
  __attribute__((always_inline)) void gather(const Unit& u, int parity, F&& between) {
    float* values = w_.part.values + u.strip * shape_.value_strip_floats();
    for (std::int64_t c = 0; c < shape_.value_tiles; c += 2) {
      float* sums = values + c * 2 * tile_floats;
      Tiles::template load<0>(sums, 64);
      Tiles::template load<1>(sums + tile_floats, 64);
      Tiles::template load<2>(sums + 2 * tile_floats, 64);
      Tiles::template load<3>(sums + 3 * tile_floats, 64);
      for (std::int64_t g = u.begin; g < u.end; ++g) {
        const std::byte* v =
            u.packed.values +
            (u.first_key / group_keys + g - u.packed.first_group) * shape_.value_group_bytes();
        for_gather_terms<terms>(
            [&](auto a, auto b, auto load_a, auto load_b) __attribute__((always_inline)) {
              constexpr std::int64_t row_bytes = strip_rows * 4;
              multiply<load_a, load_b>(
                  v + (a * shape_.value_tiles + c) * tile_bytes, tile_bytes,
                  w_.weights[parity] + (b * block_keys / 2 + g * group_keys / 2) * row_bytes, 64,
                  row_bytes, between);
            });
      }
      Tiles::template store<0>(sums, 64);
      Tiles::template store<1>(sums + tile_floats, 64);
      Tiles::template store<2>(sums + 2 * tile_floats, 64);
      Tiles::template store<3>(sums + 3 * tile_floats, 64);
    }
  }

  /// Adds the products of two tiles with two others, each load as late as its first use.
  template <bool load_a, bool load_b, class F>
  __attribute__((always_inline)) static void multiply(const std::byte* a, std::int64_t a_apart,
                                                      const std::byte* b, std::int64_t b_apart,
                                                      std::int64_t b_row_bytes, F&& between) {
    constexpr std::integral_constant<int, 0> first;
    constexpr std::integral_constant<int, 1> second;
    if constexpr (load_b) Tiles::template load<6>(b, b_row_bytes);
    if constexpr (load_a) Tiles::template load_passing<4>(a, 64);
    Tiles::template multiply<0, 4, 6>();
    between(first);
    if constexpr (load_b) Tiles::template load<7>(b + b_apart, b_row_bytes);
    Tiles::template multiply<1, 4, 7>();
    between(second);
    if constexpr (load_a) Tiles::template load_passing<5>(a + a_apart, 64);
    Tiles::template multiply<2, 5, 6>();
    between(first);
    Tiles::template multiply<3, 5, 7>();
    between(second);
  }

  /// Products are made four at a time; so many times for a unit.
  std::int64_t steps_of_score(const Unit& u) const {
    return (u.end - u.begin) * shape_.head_steps * terms * terms;
  }
  std::int64_t steps_of_gather(const Unit& u) const {
    return (u.end - u.begin) * shape_.value_tiles / 2 * terms * (terms + 1) / 2;
  }

  /// Softens `now` between the products of its neighbours.
  void step(const Unit* older, const Unit& now, const Unit* newer) {
    float* scores = w_.scores[parity_];
    std::byte* weights = w_.weights[parity_];
    const std::int64_t begin = now.begin * group_keys, end = now.end * group_keys;
    if (!tile_.rule.plain) {
      shape_scores(tile_.rule, now.rows, now.first_key, begin, end, scores);
    }
    if (now.masked) mask_scores(StripKeys(now.rows, now.first_key), begin, end, scores);
    Soften<terms> soften(tile_.rule, begin, end, scores, weights, w_.part, now.strip * strip_rows,
                         now.first);
    // A pair of keys after every two products: more at once delay the products behind them.
    const std::int64_t gaps = 2 * ((newer ? steps_of_score(*newer) : 0) +  //
                                   (older ? steps_of_gather(*older) : 0));
    const std::int64_t pairs = (end - begin) / 2;
    const std::int64_t more = gaps == 0 ? 0 : (pairs + gaps - 1) / gaps - 1;
    const auto between = [&](auto half) __attribute__((always_inline)) {
      soften.template take<half>();
      if constexpr (half == 1) {
        for (std::int64_t i = 0; i < more; ++i) {
          soften.template take<0>();
          soften.template take<1>();
        }
      }
    };
    if (newer) score(*newer, (parity_ + 1) % 2, between);
    if (older) gather(*older, (parity_ + 1) % 2, between);
    soften.take_rest();
    soften.finish();

    float* values = w_.part.values + now.strip * shape_.value_strip_floats();
    float* odd_values = w_.odd_values + now.strip * shape_.value_strip_floats();
    const auto rescale = [&](auto half) {
      if (!soften.template changed<half>()) return;
      const __m512 factor = soften.template rescale<half>();
      rescale_values(factor, shape_.value_tiles, values + half * tile_floats);
      if (odd_found_) {
        rescale_values(factor, shape_.value_tiles, odd_values + half * tile_floats);
      }
    };
    rescale(std::integral_constant<int, 0>());
    rescale(std::integral_constant<int, 1>());
    gather_odd(now, weights, odd_values);
  }

  void gather_odd(const Unit& now, const std::byte* weights, float* odd_values) {
    const std::int64_t first = now.first_key / group_keys - now.packed.first_group;
    for (std::int64_t g = now.begin; g < now.end; ++g) {
      if (now.packed.odd[first + g] == 0) continue;
      const FlushTiny exact(false);
      if (!odd_found_) {
        const std::int64_t strips = (std::ssize(tile_.rows) + strip_rows - 1) / strip_rows;
        std::fill_n(w_.odd_values, strips * shape_.value_strip_floats(), 0.0F);
        odd_found_ = true;
      }
      gather_odd_values<terms>(tile_, StripKeys(now.rows, now.first_key), now.first_key, g, weights,
                               odd_values);
    }
  }

  const AttentionTile& tile_;
  const AmxScratch& w_;
  AmxShape shape_;
  int parity_ = 0;  ///< of the buffers of the unit that is softened
  bool odd_found_ = false;
};

template <class Tiles>
void attend_tile(const AttentionTile& tile, std::int64_t split, const PackedKeys* packed,
                 const AmxScratch& w) {
  const Tiles tiles;
  const auto attend = [&]<int terms>(std::integral_constant<int, terms>) {
    // Either way a row's bits are the same.
    if (packed == nullptr && std::ssize(tile.rows) <= few_rows)
      AttendFew<Tiles, terms>(tile, w)(split);
    else Attend<Tiles, terms>(tile, w)(split, packed);
  };
  if (tile.problem.dtype == DType::f16) attend(std::integral_constant<int, 2>());
  else attend(std::integral_constant<int, 1>());
}

inline void pack_tile_keys(const AttentionProblem& problem, const KeyRows& k, const KeyRows& v,
                           KeyRange keys, std::int64_t last, const PackedKeys& to) {
  if (problem.dtype == DType::f16) pack_keys<2>(problem, k, v, keys, last, to);
  else pack_keys<1>(problem, k, v, keys, last, to);
}

inline void load_tile_queries(const AttentionTile& tile, const AmxScratch& w) {
  if (tile.problem.dtype == DType::f16) pack_queries<2>(tile, w);
  else pack_queries<1>(tile, w);
}

template <class Tiles>
constexpr AmxAttention attention_on() {
  return {pack_tile_keys, load_tile_queries, attend_tile<Tiles>, merge_states, finish_tile};
}

}  // namespace
}  // namespace packattn::cpu
