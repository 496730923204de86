// SPDX-License-Identifier: Apache-2.0
// Softmax attention of a handful of query rows (decode) on AMX tiles: keys and values are met once,
// so the pace is the memory's, and what is left to do is to bring them into tiles cheaply and to
// keep asking for more meanwhile.
//
// Scores and weights are worked out as in attention_amx_tile-inl.h, for half a strip. The weights
// are then turned round instead of the values: O += P V, columns across, where V goes in by pairs
// of keys, which takes one instruction a vector instead of five. Every sum has the same terms in
// the same order as there, and so the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cpu/attention_amx.h"
#include "cpu/attention_amx_pack-inl.h"
#include "cpu/attention_amx_softmax-inl.h"

namespace packattn::cpu {
namespace {

constexpr std::int64_t few_rows = 16;

/// Where the keys and values of a block lie; null before the first and after the last that is seen.
struct BlockRows {
  const std::byte* k[block_keys] = {};
  const std::byte* v[block_keys] = {};
  std::int64_t begin = 0, end = 0;  ///< groups

  void find(const AttentionTile& tile, std::int64_t first_key, KeyRange seen) {
    begin = (seen.begin - first_key) / group_keys;
    end = (seen.end - first_key + group_keys - 1) / group_keys;
    const std::int64_t from = begin * group_keys, stop = seen.end - first_key;
    find_rows(tile.k, first_key + from, stop - from, k + from);
    find_rows(tile.v, first_key + from, stop - from, v + from);
    std::fill(k + stop, k + end * group_keys, nullptr);
    std::fill(v + stop, v + end * group_keys, nullptr);
  }

 private:
  static void find_rows(const KeyRows& rows, std::int64_t first, std::int64_t count,
                        const std::byte** to) {
    while (count > 0) {
      const std::int64_t left =
          rows.pages == nullptr ? count : rows.page_size - first % rows.page_size;
      const std::byte* row = rows[first];
      const std::int64_t here = std::min(left, count);
      for (std::int64_t j = 0; j < here; ++j) *to++ = row + j * rows.row_stride;
      first += here;
      count -= here;
    }
  }
};

/// Asks for the rows of the next block, one at a time: all at once they would take as long as the
/// memory does, and nothing would overlap.
class NextRows {
 public:
  NextRows(const BlockRows* rows, const AttentionProblem& problem)
      : rows_(rows),
        key_bytes_(2 * problem.head_dim),
        value_bytes_(2 * problem.value_dim),
        count_(rows ? (rows->end - rows->begin) * group_keys : 0) {}

  void ask() {
    if (at_ >= 2 * count_) return;
    const bool key = at_ < count_;
    const std::int64_t j = rows_->begin * group_keys + (key ? at_ : at_ - count_);
    const std::byte* row = key ? rows_->k[j] : rows_->v[j];
    ++at_;
    if (row == nullptr) return;
    const std::int64_t bytes = key ? key_bytes_ : value_bytes_;
    for (std::int64_t at = 0; at < bytes; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
  }

 private:
  const BlockRows* rows_;
  std::int64_t key_bytes_, value_bytes_, count_;
  std::int64_t at_ = 0;
};

template <class Tiles, int terms>
class AttendFew {
 public:
  AttendFew(const AttentionTile& tile, const AmxScratch& w)
      : tile_(tile), w_(w), shape_(tile.problem) {}

  void operator()(std::int64_t split) {
    for (float* x : {w_.part.maximum, w_.part.sum, w_.part.weight})
      std::fill_n(x, strip_rows, 0.0F);
    std::fill_n(w_.part.maximum, strip_rows, -infinity);
    std::fill_n(w_.part.values, shape_.value_strip_floats(), 0.0F);
    gather_all(split * key_split);
    for (std::int64_t c = 0; c < shape_.value_tiles; c += 2) turn_values_round(c);
    if (!odd_found_) return;
    for (std::int64_t i = 0; i < shape_.value_strip_floats(); ++i) {
      w_.part.values[i] += w_.odd_values[i];
    }
  }

 private:
  /// A tile of rows x columns until the end, in the order of Pairs, then of columns x rows.
  float* values_of(std::int64_t column_tile) const {
    return w_.part.values + column_tile * 2 * tile_floats;
  }

  __attribute__((noinline)) void gather_all(std::int64_t split) {
    const FlushTiny flush;
    const std::int64_t begin = std::max(split, tile_.rows.front().visible.begin);
    const std::int64_t end = std::min(split + key_split, tile_.rows.back().visible.end);
    if (begin >= end) return;
    BlockRows now, next;
    const std::int64_t first = begin / block_keys * block_keys;
    const auto seen = [&](std::int64_t block) {
      return KeyRange{std::max(begin, block), std::min(end, block + block_keys)};
    };
    now.find(tile_, first, seen(first));
    for (std::int64_t block = first; block < end; block += block_keys) {
      const bool more = block + block_keys < end;
      if (more) next.find(tile_, block + block_keys, seen(block + block_keys));
      step(now, block, block == first, NextRows(more ? &next : nullptr, tile_.problem));
      std::swap(now, next);
    }
  }

  void step(const BlockRows& rows, std::int64_t first_key, bool first, NextRows next) {
    for (std::int64_t g = rows.begin; g < rows.end; ++g) score(rows, g, next);
    const std::int64_t begin = rows.begin * group_keys, end = rows.end * group_keys;
    if (!tile_.rule.plain) {
      shape_scores(tile_.rule, tile_.rows, first_key, begin, end, w_.scores[0]);
    }
    const StripKeys keys(tile_.rows, first_key);
    if (tile_.rows.back().visible.begin > first_key + begin ||
        tile_.rows.front().visible.end < first_key + end) {
      mask_scores(keys, begin, end, w_.scores[0]);
    }
    Soften<terms, 1> soften(tile_.rule, begin, end, w_.scores[0], w_.weights[0], w_.part, 0, first);
    for (std::int64_t pair = begin; pair < end; pair += 2) {
      soften.template take<0>();
      next.ask();
    }
    soften.finish();
    if (soften.template changed<0>()) rescale(soften.template rescale<0>());
    gather(rows, keys, first_key, next);
  }

  /// 32 scores of every row.
  void score(const BlockRows& rows, std::int64_t group, NextRows& next) {
    const std::int64_t dims = tile_.problem.head_dim, steps = shape_.head_steps;
    const std::int64_t tile_apart = terms * steps * tile_bytes;
    std::byte* const keys = w_.blocks[0].keys;
    for (std::int64_t j = 0; j < group_keys; ++j) {
      std::byte* to = keys + j / 16 * tile_apart + j % 16 * 64;
      for (std::int64_t s = 0; s < steps; ++s) {
        const auto x = load_elements<terms>(rows.k[group * group_keys + j], 32 * s, dims - 32 * s);
        for (int t = 0; t < terms; ++t) {
          _mm512_store_si512(to + (t * steps + s) * tile_bytes, x.term[t]);
        }
      }
      if (j % 2 == 0) next.ask();
    }
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    for (std::int64_t s = 0; s < steps; ++s) {
      for_score_terms<terms>(
          [&](auto a, auto b, auto load_a, auto load_b) __attribute__((always_inline)) {
            const std::byte* k = keys + (a * steps + s) * tile_bytes;
            if constexpr (load_b) {
              Tiles::template load<6>(w_.q + (b * steps + s) * 2 * tile_bytes, 64);
            }
            if constexpr (load_a) Tiles::template load<4>(k, 64);
            Tiles::template multiply<0, 4, 6>();
            if constexpr (load_a) Tiles::template load<5>(k + tile_apart, 64);
            Tiles::template multiply<1, 5, 6>();
          });
    }
    constexpr std::int64_t row_bytes = strip_rows * std::int64_t{sizeof(float)};
    float* to = w_.scores[0] + group * group_keys * strip_rows;
    Tiles::template store<0>(to, row_bytes);
    Tiles::template store<1>(to + 16 * strip_rows, row_bytes);
  }

  void gather(const BlockRows& rows, const StripKeys& keys, std::int64_t first_key,
              NextRows& next) {
    for (std::int64_t g = rows.begin; g < rows.end; ++g) {
      for (int t = 0; t < terms; ++t) {
        turn_round(weights_of(0, t, g), strip_rows * 4, weights_of(1, t, g));
      }
      if (pack_values(rows.v + g * group_keys, values_of_group(g), next)) {
        gather_odd(keys, first_key, g);
      }
    }
    std::int64_t c = 0;
    for (; c + 4 <= shape_.value_tiles; c += 4) gather_columns<4>(rows, c);
    for (; c < shape_.value_tiles; c += 2) gather_columns<2>(rows, c);
  }

  /// Pairs of keys down, columns across, 32 of them in the order of Pairs. True if some element was
  /// odd.
  bool pack_values(const std::byte* const* rows, std::byte* to, NextRows& next) {
    const auto pack = [&](auto load) __attribute__((always_inline)) {
      for (std::int64_t j = 0; j < 16; ++j) {
        for (std::int64_t c = 0; c < shape_.value_tiles; c += 2) {
          const auto a = load(rows[2 * j], 16 * c), b = load(rows[2 * j + 1], 16 * c);
          for (int t = 0; t < terms; ++t) {
            const Pairs pairs(a.term[t], b.term[t]);
            std::byte* tile = to + (t * shape_.value_tiles + c) * tile_bytes + j * 64;
            _mm512_store_si512(tile, pairs.low);
            _mm512_store_si512(tile + tile_bytes, pairs.high);
          }
        }
        next.ask();
        next.ask();
      }
    };
    const std::int64_t dims = tile_.problem.value_dim;
    OddWatch watch;
    pack([&](const std::byte* row, std::int64_t at) __attribute__((always_inline)) {
      const auto x = load_elements<terms>(row, at, dims - at);
      watch.see(x.term[0]);
      return x;
    });
    if (!watch.found()) return false;
    pack([&](const std::byte* row, std::int64_t at) {
      auto x = load_elements<terms>(row, at, dims - at);
      const __mmask32 kept = ~odd_elements(x.term[0]);
      for (__m512i& term : x.term) term = _mm512_maskz_mov_epi16(kept, term);
      return x;
    });
    return true;
  }

  template <int count>
  void gather_columns(const BlockRows& rows, std::int64_t c) {
    Tiles::template load<0>(values_of(c), 64);
    Tiles::template load<1>(values_of(c + 1), 64);
    if constexpr (count == 4) {
      Tiles::template load<2>(values_of(c + 2), 64);
      Tiles::template load<3>(values_of(c + 3), 64);
    }
    for (std::int64_t g = rows.begin; g < rows.end; ++g) {
      for_gather_terms<terms>(
          [&](auto a, auto b, auto, auto load_b) __attribute__((always_inline)) {
            const std::byte* v = values_of_group(g) + (a * shape_.value_tiles + c) * tile_bytes;
            if constexpr (load_b) Tiles::template load<4>(weights_of(1, b, g), 64);
            Tiles::template load<5>(v, 64);
            Tiles::template multiply<0, 4, 5>();
            Tiles::template load<6>(v + tile_bytes, 64);
            Tiles::template multiply<1, 4, 6>();
            if constexpr (count == 4) {
              Tiles::template load<5>(v + 2 * tile_bytes, 64);
              Tiles::template multiply<2, 4, 5>();
              Tiles::template load<6>(v + 3 * tile_bytes, 64);
              Tiles::template multiply<3, 4, 6>();
            }
          });
    }
    Tiles::template store<0>(values_of(c), 64);
    Tiles::template store<1>(values_of(c + 1), 64);
    if constexpr (count == 4) {
      Tiles::template store<2>(values_of(c + 2), 64);
      Tiles::template store<3>(values_of(c + 3), 64);
    }
  }

  void rescale(__m512 factor) {
    alignas(64) float of_row[few_rows];
    _mm512_store_ps(of_row, factor);
    for (std::int64_t c = 0; c < shape_.value_tiles; ++c) {
      for (std::int64_t r = 0; r < few_rows; ++r) {
        float* at = values_of(c) + 16 * r;
        _mm512_store_ps(at,
                        without_tiny(_mm512_mul_ps(_mm512_load_ps(at), _mm512_set1_ps(of_row[r]))));
      }
    }
    if (odd_found_) rescale_values(factor, shape_.value_tiles, w_.odd_values);
  }

  void gather_odd(const StripKeys& keys, std::int64_t first_key, std::int64_t group) {
    const FlushTiny exact(false);
    if (!odd_found_) std::fill_n(w_.odd_values, shape_.value_strip_floats(), 0.0F);
    odd_found_ = true;
    gather_odd_values<terms>(tile_, keys, first_key, group, w_.weights[0], w_.odd_values);
  }

  std::byte* weights_of(int buffer, int term, std::int64_t group) const {
    constexpr std::int64_t pair_bytes = strip_rows * 4;
    return w_.weights[buffer] + (term * block_keys / 2 + group * group_keys / 2) * pair_bytes;
  }
  std::byte* values_of_group(std::int64_t group) const {
    return w_.blocks[0].values + group * shape_.value_group_bytes();
  }

  /// A tile of 4-byte units whose rows lie `row_bytes` apart, into one whose columns they are.
  static void turn_round(const std::byte* from, std::int64_t row_bytes, std::byte* to) {
    __m512i x[16];
    for (int i = 0; i < 16; ++i) x[i] = _mm512_load_si512(from + i * row_bytes);
    transpose(x);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 64 * i, x[i]);
  }
  /// Two tiles of values into their columns' order.
  void turn_values_round(std::int64_t c) const {
    alignas(64) std::byte turned[2][tile_bytes];
    for (int i = 0; i < 2; ++i) {
      turn_round(reinterpret_cast<const std::byte*>(values_of(c + i)), 64, turned[i]);
    }
    for (int i = 0; i < 2; ++i) {
      for (std::int64_t place = 0; place < 16; ++place) {
        const std::int64_t column = paired_column(place) + 4 * i;
        _mm512_store_si512(values_of(c + column / 16) + column % 16 * 16,
                           _mm512_load_si512(turned[i] + 64 * place));
      }
    }
  }

  const AttentionTile& tile_;
  const AmxScratch& w_;
  AmxShape shape_;
  bool odd_found_ = false;
};

}  // namespace
}  // namespace packattn::cpu
