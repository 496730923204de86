// SPDX-License-Identifier: Apache-2.0
#include "cpu/kda_schedule.h"

#include <algorithm>

namespace packattn::cpu {
namespace {

/// Pieces of work a thread should get: fewer leave it idle at the end, more repeat the work that
/// all parts of a head share (gates, norms).
constexpr std::int64_t items_per_thread = 4;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::shared_ptr<KdaSchedule> KdaSchedule::make(const KdaCall& call, int threads,
                                               std::int64_t column_block,
                                               std::size_t (*worker_bytes)(const KdaProblem& p,
                                                                           std::int64_t columns)) {
  const KdaProblem& p = call.problem;
  auto schedule = std::make_shared<KdaSchedule>();
  schedule->value_dim = p.value_dim;
  std::int64_t tokens = 0, chunks = 0;
  for (std::size_t n = 0; n < call.sequences.size(); ++n) {
    if (call.sequences[n].length == 0) continue;
    schedule->entries.push_back({n, p.value_dim, 0, chunks});
    tokens += call.sequences[n].length;
    chunks += divide_up(call.sequences[n].length, p.chunk_size);
  }
  std::stable_sort(schedule->entries.begin(), schedule->entries.end(),
                   [&](const Entry& a, const Entry& b) {
                     return call.sequences[a.sequence].length > call.sequences[b.sequence].length;
                   });
  const std::int64_t blocks = divide_up(p.value_dim, column_block);
  // One thread has nobody to share with.
  const std::int64_t wanted = threads > 1 ? items_per_thread * threads : 1;
  std::int64_t widest = 0;
  for (Entry& entry : schedule->entries) {
    const std::int64_t length = call.sequences[entry.sequence].length;
    const std::int64_t parts =
        std::clamp<std::int64_t>(divide_up(length * wanted, tokens * p.value_heads), 1, blocks);
    entry.columns = std::min(p.value_dim, divide_up(blocks, parts) * column_block);
    entry.first_item = schedule->items;
    schedule->items += p.value_heads * divide_up(p.value_dim, entry.columns);
    widest = std::max(widest, entry.columns);
  }
  schedule->worker_bytes = (worker_bytes(p, widest) + 63) / 64 * 64;
  const std::int64_t workers =
      std::min<std::int64_t>(threads, std::max<std::int64_t>(1, schedule->items));
  schedule->workspace_bytes = schedule->worker_bytes * static_cast<std::size_t>(workers);
  return schedule;
}

KdaItem KdaSchedule::item(std::int64_t index) const {
  const auto next =
      std::upper_bound(entries.begin(), entries.end(), index,
                       [](std::int64_t i, const Entry& entry) { return i < entry.first_item; });
  const Entry& entry = *(next - 1);
  const std::int64_t parts = divide_up(value_dim, entry.columns);
  const std::int64_t within = index - entry.first_item;
  const std::int64_t first = within % parts * entry.columns;
  return {entry.sequence, within / parts, first, std::min(entry.columns, value_dim - first),
          entry.first_chunk};
}

}  // namespace packattn::cpu
