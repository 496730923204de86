// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/implementation_table.h"
#include "cpu/amx_tiles.h"
#include "cpu/attention_plan.h"
#include "cpu/attention_tile.h"

// What the schedule (attention_amx.cpp) and the kernels on AMX tiles (attention_amx_tile-inl.h)
// tell each other. Scores are computed transposed, keys down and queries across: K is read as it
// lies, and a query is a lane, so that a softmax needs no sum across lanes.

namespace packattn::cpu {

constexpr std::int64_t strip_rows = 32;   ///< query rows computed together: two tiles
constexpr std::int64_t group_keys = 32;   ///< keys of one product with V: two tiles of scores
constexpr std::int64_t block_keys = 128;  ///< keys softened together
constexpr std::int64_t tile_floats = 256;
constexpr std::int64_t block_groups = block_keys / group_keys;

/// Sizes in tiles. A bf16 element is one term. An fp16 element is the exact sum of two bf16 terms.
struct AmxShape {
  std::int64_t terms = 1;
  std::int64_t head_steps = 0;   ///< of 32 dimensions
  std::int64_t value_tiles = 0;  ///< of 16 columns, an even number

  explicit AmxShape(const AttentionProblem& problem)
      : terms(problem.dtype == DType::f16 ? 2 : 1),
        head_steps((problem.head_dim + 31) / 32),
        value_tiles((problem.value_dim + 31) / 32 * 2) {}

  std::int64_t key_group_bytes() const { return 2 * terms * head_steps * tile_bytes; }
  std::int64_t value_group_bytes() const { return terms * value_tiles * tile_bytes; }
  std::int64_t query_strip_bytes() const { return 2 * terms * head_steps * tile_bytes; }
  std::int64_t value_strip_floats() const { return 2 * value_tiles * tile_floats; }
};

/// Packed keys and values of one sequence and key head, in groups of 32 keys from `first_group` on.
///   keys    [group][tile of 16 keys][term][step][16 keys][32 dimensions]
///   values  [group][term][tile of 16 columns][16 columns][32 keys]
struct PackedKeys {
  std::int64_t first_group = 0;
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  /// [group]: whether some value cannot go through the tiles: not finite, or so small that tiles,
  /// which count anything below 2^-126 as 0, would lose it. Such values are packed as 0.
  std::uint8_t* odd = nullptr;
};

/// Running softmax, a strip of 32 rows after another.
struct AmxStates {
  float* maximum = nullptr;  ///< that the weights refer to
  float* sum = nullptr;      ///< of exponentials
  float* weight = nullptr;   ///< of the exponentials as the product with V takes them
  float* values = nullptr;   ///< [strip][tile of 16 columns][tile of 16 rows][column][row]
};

/// Scratch memory of one worker.
struct AmxScratch {
  TileRow* rows = nullptr;
  std::byte* q = nullptr;       ///< [strip][term][step][tile of 16 rows][pair of dimensions][row]
  float* scores[2] = {};        ///< [key of a block][row of a strip]
  std::byte* weights[2] = {};   ///< [term][pair of keys][row of a strip], pairs of bf16
  float* odd_values = nullptr;  ///< like AmxStates::values: what did not go through the tiles
  PackedKeys blocks[3];         ///< of one block each, where keys are packed as they are met
  AmxStates part, total;
};

/// The kernels, in the order in which they are called.
struct AmxAttention {
  /// Packs `keys`, the first one of which begins a group; the rest of their last group are zeros.
  /// Keys up to `last` are fetched ahead.
  void (*pack)(const AttentionProblem& problem, const KeyRows& k, const KeyRows& v, KeyRange keys,
               std::int64_t last, const PackedKeys& to) = nullptr;
  void (*load_queries)(const AttentionTile& tile, const AmxScratch& scratch) = nullptr;
  /// Attends to the keys of one split, from scratch; the result is `scratch.part`. Without `packed`
  /// keys are packed as they are met.
  void (*attend)(const AttentionTile& tile, std::int64_t split, const PackedKeys* packed,
                 const AmxScratch& scratch) = nullptr;
  /// Joins the result of the next split to `total`.
  void (*merge)(const AttentionTile& tile, const AmxStates& part, const AmxStates& total) = nullptr;
  void (*finish)(const AttentionTile& tile, const AmxStates& total) = nullptr;
};

/// The list's row: what the machine runs, or what tests put in its place (amx_support.h).
AttentionImplementation amx_attention();

/// On the tiles of the processor.
const AmxAttention& hardware_amx_attention();

}  // namespace packattn::cpu
