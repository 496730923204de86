// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/attention_problem.h"

// What the schedule (attention.cpp) and the vector kernels (attention_tile.cpp) tell each other.

namespace packattn::cpu {

/// Keys are taken in tiles of this many, counted from key 0 of the sequence.
constexpr std::int64_t key_tile = 128;
/// So many rows, whole blocks of any kernel, have their scores in memory at a time.
constexpr std::int64_t score_rows = 24;
/// Every `key_split` keys the softmax starts anew, and the parts are merged in order. That is done
/// for every row, in prefill and in decode, so that the parts of a long sequence can run on several
/// threads without changing a bit.
constexpr std::int64_t key_split = 2048;

/// The rows of K or V of one sequence and one head: packed, or in the pages of a cache.
struct KeyRows {
  const std::byte* first = nullptr;
  std::int64_t row_stride = 0;  ///< bytes
  const std::int32_t* pages = nullptr;
  std::int64_t page_size = 1;
  std::int64_t page_stride = 0;  ///< bytes

  const std::byte* operator[](std::int64_t j) const {
    if (!pages) return first + j * row_stride;
    return first + pages[j / page_size] * page_stride + j % page_size * row_stride;
  }
};

/// How dot products become exponents of 2: (score - maximum) * log2_factor. Plain scores are the
/// dot products themselves; otherwise they are scaled, capped and biased first.
struct ScoreRule {
  bool plain = true;
  bool alibi = false;
  float scale = 1;
  float softcap = 0;
  float log2_factor = 1;
  double lse_factor = 1;  ///< maximum * lse_factor is a natural logarithm
};

/// One query row of one query head.
struct TileRow {
  const std::byte* q = nullptr;
  std::byte* out = nullptr;
  float* lse = nullptr;  ///< null for none
  KeyRange visible;
  const float* sink = nullptr;  ///< null for none
  // ALiBi: -slope * |j - diagonal| with the diagonal moved among the visible keys; the distance it
  // was moved by is the same for all keys and only shifts the lse.
  float slope = 0;
  std::int64_t diagonal = 0;
  double lse_offset = 0;
};

/// Rows that share one key head of one sequence, in the order in which what they see grows.
struct AttentionTile {
  const AttentionProblem& problem;
  const ScoreRule& rule;
  std::span<const TileRow> rows;
  KeyRows k, v;
};

/// Running softmax of the rows of a tile.
struct RowStates {
  float* maximum = nullptr;  ///< [rows]
  float* sum = nullptr;      ///< [rows], of the exponentials: the lse
  float* weight = nullptr;   ///< [rows], of the weights as P V uses them, rounded: divides `values`
  float* values = nullptr;   ///< [rows, padded value_dim], weighted sums
};

/// Scratch memory of one worker.
struct TileScratch {
  float* q = nullptr;        ///< blocks of query rows: [padded head_dim, block_rows] each
  float* scores = nullptr;   ///< [score_rows, key_tile]
  float* rescale = nullptr;  ///< [rows]: what a tile's new maximum makes of the older sums
  float* keys = nullptr;     ///< panels of keys: [padded head_dim, panel] each
  float* widened = nullptr;  ///< [panel, padded head_dim]: keys on their way into a panel
  float* values = nullptr;   ///< panels of value columns: [key_tile, panel] each, and a gap
  RowStates part, total;
};

/// One instruction set's kernels and the sizes they work in. They are called in this order.
struct TileKernel {
  std::string_view name;          ///< "cpu/attention.avx512"
  std::int64_t target = 0;        ///< Highway's bit for the instruction set
  int block_rows = 0;             ///< query rows computed together
  int panel = 0;                  ///< keys, or value columns, computed together
  DType dtype = DType::none;      ///< the only one it takes; none: all three
  std::string_view needs = {};    ///< what `fast_here` looks for
  bool (*fast_here)() = nullptr;  ///< null: the instruction set is all it takes

  void (*load_queries)(const AttentionTile& tile, const TileScratch& scratch) = nullptr;
  /// Attends to the keys of one split, from scratch; the result is `scratch.part`.
  void (*attend)(const AttentionTile& tile, std::int64_t split,
                 const TileScratch& scratch) = nullptr;
  /// Joins the result of the next split to `total`.
  void (*merge)(const AttentionTile& tile, std::int64_t split, const RowStates& part,
                const RowStates& total) = nullptr;
  /// Writes the outputs.
  void (*finish)(const AttentionTile& tile, const RowStates& total) = nullptr;
};

/// The kernels compiled in, best first: those for one type, and those for all.
std::span<const TileKernel> bf16_kernels();
std::span<const TileKernel> fp32_kernels();

/// value columns lie 16 floats further apart than they need to: panels that are a power of two
/// apart would all fall on the same few lines of the cache.
constexpr std::int64_t panel_gap = 16;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}
/// Four dimensions of four keys are transposed at a time.
constexpr std::int64_t padded_head(const AttentionProblem& problem) {
  return round_up(problem.head_dim, 4);
}
constexpr std::int64_t padded_value(const AttentionProblem& problem, std::int64_t panel) {
  return round_up(problem.value_dim, panel);
}

}  // namespace packattn::cpu
