// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/implementation_table.h"
#include "cpu/attention_tile.h"

namespace packattn::cpu {

/// Rows [row_begin, row_begin + rows) of one sequence, for every key head. Row r is query head
/// r % group of the key head's group at position r / group.
struct Work {
  std::int64_t sequence = 0;
  std::int64_t row_begin = 0;
  std::int64_t rows = 0;
  std::int64_t split_begin = 0, split_end = 0;
  std::int64_t parts = -1;  ///< where the results of single splits go, in floats; -1: no splits
};

struct AttentionPlan : Plan {
  std::int64_t tile_rows = 0;
  std::vector<Work> work;         ///< longest first
  std::vector<Work> joins;        ///< whose splits run as work of their own
  bool long_keys = false;         ///< some sequence has more than one split
  std::size_t scratch_bytes = 0;  ///< of one worker
};

/// Cuts memory into aligned arrays, or only measures them if there is no memory yet.
class Cutter {
 public:
  explicit Cutter(std::byte* memory = nullptr) : memory_(memory) {}
  template <class T = float>
  T* take(std::int64_t count) {
    std::byte* at = memory_ ? memory_ + used_ : nullptr;
    used_ += static_cast<std::size_t>(round_up(count * std::int64_t{sizeof(T)}, 64));
    return reinterpret_cast<T*>(at);
  }
  RowStates take_states(std::int64_t rows, std::int64_t columns) {
    return {take(rows), take(rows), take(rows), take(rows * columns)};
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

struct WorkerScratch {
  TileScratch tile;
  TileRow* rows = nullptr;
};

/// One worker's scratch memory for tiles of `rows` rows.
WorkerScratch cut_scratch(const AttentionProblem& problem, const TileKernel& kernel,
                          std::int64_t rows, bool long_keys, Cutter& memory);

/// Floats of the result of one split for one key head.
std::int64_t part_floats(const AttentionProblem& problem, const TileKernel& kernel,
                         std::int64_t rows);

/// Rows of a tile: `rows`, or fewer, down to `least`, where that would leave threads idle. The
/// choice changes no bit.
std::int64_t fit_tile_rows(const AttentionCall& call, std::int64_t rows, std::int64_t least,
                           std::int64_t step, int threads);

/// Fills in work and joins for tiles of `plan.tile_rows` rows. Returns the floats that the results
/// of single splits take, `floats_of_part(rows)` for each.
std::int64_t lay_out(AttentionPlan& plan, const AttentionCall& call, int threads,
                     const std::function<std::int64_t(std::int64_t rows)>& floats_of_part);

std::shared_ptr<const Plan> make_plan(const TileKernel& kernel, const AttentionCall& call,
                                      int threads);

}  // namespace packattn::cpu
