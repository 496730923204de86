// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/implementation_table.h"

namespace packattn::cpu {

/// One piece of a KDA call that runs on one thread: columns [first_column, first_column + columns)
/// of one value head of one sequence. Columns of the state never mix, so how they are cut changes
/// no bit.
struct KdaItem {
  std::size_t sequence = 0;
  std::int64_t head = 0;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;
  std::int64_t first_chunk = 0;  ///< of the sequence, in chunk_states
};

/// Longest sequences first, head by head, each head in as many column parts as let all threads
/// finish soonest. A function of the lengths and the thread count, so that calls on one batch share
/// it.
struct KdaSchedule : Plan {
  struct Entry {
    std::size_t sequence;
    std::int64_t first_chunk;
  };

  /// `column_block` is the least number of columns worth cutting off; `worker_bytes` is the scratch
  /// memory of one worker for a part with that many columns.
  static std::shared_ptr<KdaSchedule> make(const KdaCall& call, int threads,
                                           std::int64_t column_block,
                                           std::size_t (*worker_bytes)(const KdaProblem& p,
                                                                       std::int64_t columns));
  KdaItem item(std::int64_t index) const;

  std::vector<Entry> entries;
  std::int64_t items = 0;
  std::int64_t value_heads = 0, value_dim = 0;
  std::int64_t parts = 1;    ///< of a head
  std::int64_t columns = 0;  ///< of a part; the last one may have fewer
  std::size_t worker_bytes = 0;
};

}  // namespace packattn::cpu
