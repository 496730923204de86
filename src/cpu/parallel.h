// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "core/implementation_table.h"

namespace packattn::cpu {

/// What is done for one item. `worker` is below the thread count and belongs to one thread at a
/// time: it names the slice of scratch memory that the item may use.
using ItemFunction = std::function<void(std::int64_t item, int worker)>;

/// Runs `work` for every item of [0, count) on up to `context.threads` threads and reports
/// progress. Items start in order and each goes to the next free thread: sort the longest to the
/// front. Which thread runs an item must not change a bit. An exception, also one of the progress
/// callback, stops the remaining items and reaches the caller. A child of fork() runs the items one
/// after another. `done_before` and `total` place these items among the units that the callback is
/// told about.
void parallel_for_items(std::int64_t count, const RunContext& context, const ItemFunction& work,
                        std::int64_t done_before = 0, std::int64_t total = -1);

}  // namespace packattn::cpu
