// SPDX-License-Identifier: Apache-2.0
#include "cpu/kda_schedule.h"

#include <algorithm>
#include <iterator>

namespace packattn::cpu {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Gates, norms and betas of a head, which every part of it evaluates, as a share of all its work.
constexpr double shared_work = 0.25;
/// With more heads than this per thread no cut can pay.
constexpr std::int64_t plenty = 16;

/// When the last thread is done if every head is cut in `parts`, each item going to the next free
/// thread, longest first.
double finish_time(const std::vector<std::int64_t>& lengths, std::int64_t heads, std::int64_t parts,
                   int threads) {
  std::vector<double> busy(static_cast<std::size_t>(threads));
  for (const std::int64_t length : lengths) {
    const double work = static_cast<double>(length) *
                        (shared_work + (1 - shared_work) / static_cast<double>(parts));
    for (std::int64_t item = 0; item < heads * parts; ++item) {
      *std::min_element(busy.begin(), busy.end()) += work;
    }
  }
  return *std::max_element(busy.begin(), busy.end());
}

/// Parts that a head is cut in: as few as let all threads finish soonest.
std::int64_t best_parts(const std::vector<std::int64_t>& lengths, std::int64_t heads,
                        std::int64_t blocks, int threads) {
  if (threads == 1 || std::ssize(lengths) * heads > plenty * threads) return 1;
  std::int64_t best = 1;
  double soonest = finish_time(lengths, heads, 1, threads);
  for (std::int64_t parts = 2; parts <= blocks && parts <= 2 * threads; ++parts) {
    const double time = finish_time(lengths, heads, parts, threads);
    if (time < 0.98 * soonest) {
      best = parts;
      soonest = time;
    }
  }
  return best;
}

}  // namespace

std::shared_ptr<KdaSchedule> KdaSchedule::make(const KdaCall& call, int threads,
                                               std::int64_t column_block,
                                               std::size_t (*worker_bytes)(const KdaProblem& p,
                                                                           std::int64_t columns)) {
  const KdaProblem& p = call.problem;
  auto schedule = std::make_shared<KdaSchedule>();
  schedule->value_dim = p.value_dim;
  std::int64_t chunks = 0;
  for (std::size_t n = 0; n < call.sequences.size(); ++n) {
    if (call.sequences[n].length == 0) continue;
    schedule->entries.push_back({n, chunks});
    chunks += divide_up(call.sequences[n].length, p.chunk_size);
  }
  std::stable_sort(schedule->entries.begin(), schedule->entries.end(),
                   [&](const Entry& a, const Entry& b) {
                     return call.sequences[a.sequence].length > call.sequences[b.sequence].length;
                   });
  std::vector<std::int64_t> lengths;
  for (const Entry& entry : schedule->entries) {
    lengths.push_back(call.sequences[entry.sequence].length);
  }
  const std::int64_t blocks = divide_up(p.value_dim, column_block);
  const std::int64_t parts = best_parts(lengths, p.value_heads, blocks, threads);
  schedule->columns = std::min(p.value_dim, divide_up(blocks, parts) * column_block);
  schedule->parts = divide_up(p.value_dim, schedule->columns);
  schedule->items = std::ssize(schedule->entries) * p.value_heads * schedule->parts;
  schedule->value_heads = p.value_heads;
  schedule->worker_bytes = (worker_bytes(p, schedule->columns) + 63) / 64 * 64;
  const std::int64_t workers =
      std::min<std::int64_t>(threads, std::max<std::int64_t>(1, schedule->items));
  schedule->workspace_bytes = schedule->worker_bytes * static_cast<std::size_t>(workers);
  return schedule;
}

KdaItem KdaSchedule::item(std::int64_t index) const {
  const Entry& entry = entries[static_cast<std::size_t>(index / (value_heads * parts))];
  const std::int64_t first = index % parts * columns;
  return {entry.sequence, index / parts % value_heads, first, std::min(columns, value_dim - first),
          entry.first_chunk};
}

}  // namespace packattn::cpu
