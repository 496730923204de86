// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace packattn::cpu {
namespace {

std::int64_t count_tiles(const AttentionCall& call, std::int64_t tile_rows) {
  std::int64_t tiles = 0;
  for (const Sequence& s : call.batch.sequences()) {
    tiles += (s.q_length * call.problem.group() + tile_rows - 1) / tile_rows;
  }
  return tiles * call.problem.heads_k;
}

/// Many rows share the cost of packing their keys, as long as what they need stays in the second
/// level cache.
std::int64_t most_rows(const AttentionProblem& problem, const TileKernel& kernel) {
  constexpr std::int64_t cache_floats = 160 * 1024;
  const std::int64_t block = kernel.block_rows;
  const std::int64_t row_floats = padded_head(problem) + 2 * padded_value(problem, kernel.panel);
  return std::clamp(cache_floats / row_floats / block * block, 2 * block, round_up(384, block));
}

/// The keys that at least one row of the work sees.
KeyRange seen_by(const AttentionProblem& problem, const Sequence& s, const Work& work) {
  const std::int64_t first = work.row_begin / problem.group();
  const std::int64_t last = (work.row_begin + work.rows - 1) / problem.group();
  return {problem.mask.visible(s, first).begin, problem.mask.visible(s, last).end};
}

}  // namespace

WorkerScratch cut_scratch(const AttentionProblem& problem, const TileKernel& kernel,
                          std::int64_t rows, bool long_keys, Cutter& memory) {
  const std::int64_t depth = padded_head(problem);
  const std::int64_t columns = padded_value(problem, kernel.panel);
  WorkerScratch w;
  w.tile.q = memory.take(rows * depth);
  w.tile.scores = memory.take(std::min(rows, score_rows) * key_tile);
  w.tile.rescale = memory.take(rows);
  w.tile.keys = memory.take(key_tile * depth);
  w.tile.widened = memory.take(std::max(kernel.panel, kernel.block_rows) * depth);
  w.tile.values = memory.take(columns / kernel.panel * (key_tile * kernel.panel + panel_gap));
  w.tile.part = memory.take_states(rows, columns);
  w.tile.total = long_keys ? memory.take_states(rows, columns) : w.tile.part;
  w.rows = memory.take<TileRow>(rows);
  return w;
}

/// Floats of the result of one split for one key head.
std::int64_t part_floats(const AttentionProblem& problem, const TileKernel& kernel,
                         std::int64_t rows) {
  Cutter size;
  size.take_states(round_up(rows, kernel.block_rows), padded_value(problem, kernel.panel));
  return static_cast<std::int64_t>(size.used() / sizeof(float));
}

std::int64_t fit_tile_rows(const AttentionCall& call, std::int64_t rows, std::int64_t least,
                           std::int64_t step, int threads) {
  while (threads > 1 && rows > least && count_tiles(call, rows) < 4 * threads) {
    rows = round_up(rows / 2, step);
  }
  return rows;
}

std::int64_t lay_out(AttentionPlan& plan, const AttentionCall& call, int threads,
                     const std::function<std::int64_t(std::int64_t rows)>& floats_of_part) {
  const AttentionProblem& problem = call.problem;
  const bool few_tiles = threads > 1 && count_tiles(call, plan.tile_rows) < 4 * threads;
  std::vector<std::pair<std::int64_t, Work>> costs;
  std::int64_t parts = 0;

  const auto sequences = call.batch.sequences();
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& s = sequences[n];
    const std::int64_t rows = s.q_length * problem.group();
    for (std::int64_t begin = 0; begin < rows; begin += plan.tile_rows) {
      Work work{static_cast<std::int64_t>(n), begin, std::min(plan.tile_rows, rows - begin)};
      const KeyRange seen = seen_by(problem, s, work);
      if (!seen.empty()) {
        work.split_begin = seen.begin / key_split;
        work.split_end = (seen.end + key_split - 1) / key_split;
      }
      const std::int64_t splits = work.split_end - work.split_begin;
      plan.long_keys = plan.long_keys || splits > 1;
      if (splits <= 1 || !few_tiles || rows > plan.tile_rows) {
        costs.emplace_back((seen.end - seen.begin) * work.rows, work);
        continue;
      }
      work.parts = parts;
      plan.joins.push_back(work);
      for (std::int64_t split = work.split_begin; split < work.split_end; ++split) {
        Work single = work;
        single.split_begin = split;
        single.split_end = split + 1;
        single.parts = parts;
        parts += problem.heads_k * floats_of_part(work.rows);
        costs.emplace_back(key_split * work.rows, single);
      }
    }
  }
  // Equal costs keep their order, so that work on the same keys stays together.
  std::sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) {
    const auto key = [](const auto& cost) {
      const Work& w = cost.second;
      return std::tuple(-cost.first, w.sequence, w.row_begin, w.split_begin);
    };
    return key(a) < key(b);
  });
  for (const auto& cost : costs) plan.work.push_back(cost.second);
  return parts;
}

std::shared_ptr<const Plan> make_plan(const TileKernel& kernel, const AttentionCall& call,
                                      int threads) {
  const AttentionProblem& problem = call.problem;
  const std::int64_t block = kernel.block_rows;
  auto plan = std::make_shared<AttentionPlan>();
  plan->tile_rows = fit_tile_rows(call, most_rows(problem, kernel), 2 * block, block, threads);
  const std::int64_t parts = lay_out(
      *plan, call, threads, [&](std::int64_t rows) { return part_floats(problem, kernel, rows); });

  Cutter size;
  cut_scratch(problem, kernel, plan->tile_rows, plan->long_keys, size);
  plan->scratch_bytes = size.used();
  if (!plan->work.empty()) {
    plan->workspace_bytes = plan->scratch_bytes * static_cast<std::size_t>(threads) +
                            static_cast<std::size_t>(parts) * sizeof(float);
  }
  return plan;
}

}  // namespace packattn::cpu
