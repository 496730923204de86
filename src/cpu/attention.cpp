// SPDX-License-Identifier: Apache-2.0
// The schedule of softmax attention on the CPU: tiles of query rows, longest first, on whatever
// thread is free. The arithmetic is in attention_tile.cpp.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>
#include <vector>

#include "core/injection.h"
#include "cpu/attention_tile.h"
#include "cpu/cpu.h"
#include "cpu/parallel.h"
#include "errors/fault_list.h"

namespace packattn::cpu {
namespace {

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
    return {take(rows), take(rows), take(rows * columns)};
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

WorkerScratch cut_scratch(const AttentionProblem& problem, const TileKernel& kernel,
                          std::int64_t rows, bool long_keys, Cutter& memory) {
  const std::int64_t depth = padded_head(problem);
  const std::int64_t columns = padded_value(problem, kernel.panel);
  WorkerScratch w;
  w.tile.q = memory.take(rows * depth);
  w.tile.scores = memory.take(rows * key_tile);
  w.tile.rescale = memory.take(rows);
  w.tile.keys = memory.take(key_tile * depth);
  w.tile.widened = memory.take(kernel.panel * depth);
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

std::int64_t count_tiles(const AttentionCall& call, std::int64_t tile_rows) {
  std::int64_t tiles = 0;
  for (const Sequence& s : call.batch.sequences()) {
    tiles += (s.q_length * call.problem.group() + tile_rows - 1) / tile_rows;
  }
  return tiles * call.problem.heads_k;
}

/// Many rows share the cost of packing their keys, as long as what they need stays in the second
/// level cache; too few tiles leave threads idle. The choice changes no bit.
std::int64_t choose_tile_rows(const AttentionCall& call, const TileKernel& kernel, int threads) {
  constexpr std::int64_t cache_floats = 96 * 1024;
  const std::int64_t block = kernel.block_rows;
  const std::int64_t row_floats =
      padded_head(call.problem) + key_tile + 2 * padded_value(call.problem, kernel.panel);
  std::int64_t rows =
      std::clamp(cache_floats / row_floats / block * block, 2 * block, round_up(192, block));
  while (threads > 1 && rows > 2 * block && count_tiles(call, rows) < 4 * threads) {
    rows = round_up(rows / 2, block);
  }
  return rows;
}

std::shared_ptr<const Plan> make_plan(const TileKernel& kernel, const AttentionCall& call,
                                      int threads) {
  const AttentionProblem& problem = call.problem;
  auto plan = std::make_shared<AttentionPlan>();
  plan->tile_rows = choose_tile_rows(call, kernel, threads);
  const bool few_tiles = threads > 1 && count_tiles(call, plan->tile_rows) < 4 * threads;
  std::vector<std::pair<std::int64_t, Work>> costs;
  std::int64_t parts = 0;

  const auto sequences = call.batch.sequences();
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& s = sequences[n];
    const std::int64_t rows = s.q_length * problem.group();
    for (std::int64_t begin = 0; begin < rows; begin += plan->tile_rows) {
      Work work{static_cast<std::int64_t>(n), begin, std::min(plan->tile_rows, rows - begin)};
      const std::int64_t last = (begin + work.rows - 1) / problem.group();
      const KeyRange seen{problem.mask.visible(s, begin / problem.group()).begin,
                          problem.mask.visible(s, last).end};
      if (!seen.empty()) {
        work.split_begin = seen.begin / key_split;
        work.split_end = (seen.end + key_split - 1) / key_split;
      }
      const std::int64_t splits = work.split_end - work.split_begin;
      plan->long_keys = plan->long_keys || splits > 1;
      if (splits <= 1 || !few_tiles || rows > plan->tile_rows) {
        costs.emplace_back((seen.end - seen.begin) * work.rows, work);
        continue;
      }
      work.parts = parts;
      plan->joins.push_back(work);
      for (std::int64_t split = work.split_begin; split < work.split_end; ++split) {
        Work single = work;
        single.split_begin = split;
        single.split_end = split + 1;
        single.parts = parts;
        parts += problem.heads_k * part_floats(problem, kernel, work.rows);
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
  for (const auto& cost : costs) plan->work.push_back(cost.second);

  Cutter size;
  cut_scratch(problem, kernel, plan->tile_rows, plan->long_keys, size);
  plan->scratch_bytes = size.used();
  if (!plan->work.empty()) {
    plan->workspace_bytes = plan->scratch_bytes * static_cast<std::size_t>(threads) +
                            static_cast<std::size_t>(parts) * sizeof(float);
  }
  return plan;
}

ScoreRule score_rule(const AttentionProblem& problem) {
  const double factor = problem.scale * std::numbers::log2e;
  ScoreRule rule{.alibi = problem.alibi,
                 .scale = static_cast<float>(problem.scale),
                 .softcap = static_cast<float>(problem.softcap),
                 .log2_factor = static_cast<float>(factor),
                 .lse_factor = problem.scale};
  rule.plain =
      problem.softcap == 0 && !problem.alibi && factor > 0 && std::isnormal(rule.log2_factor);
  if (!rule.plain) {
    rule.log2_factor = std::numbers::log2e_v<float>;
    rule.lse_factor = 1;
  }
  return rule;
}

template <class Byte>
Byte* address(const TensorView& tensor, std::int64_t element) {
  return tensor.as<Byte>() + element * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

KeyRows key_rows(const AttentionCall& call, const TensorView& tensor, std::int64_t sequence,
                 std::int64_t head) {
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype()));
  const std::int64_t row_stride = tensor.stride(-3);
  const Sequence& s = call.batch.sequences()[static_cast<std::size_t>(sequence)];
  KeyRows rows{
      .first = address<const std::byte>(tensor, head * tensor.stride(-2) + s.k_start * row_stride),
      .row_stride = row_stride * bytes};
  if (call.problem.paged) {
    rows.pages = call.batch.block_table(sequence).data();
    rows.page_size = call.problem.page_size;
    rows.page_stride = tensor.stride(0) * bytes;
  }
  return rows;
}

void fill_rows(const AttentionCall& call, const Work& work, std::int64_t key_head,
               std::span<TileRow> rows) {
  const auto& [args, options, problem, batch] = call;
  const Sequence& s = batch.sequences()[static_cast<std::size_t>(work.sequence)];
  const TensorView& slopes = options.alibi_slopes;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t flat = work.row_begin + static_cast<std::int64_t>(r);
    const std::int64_t i = flat / problem.group();
    const std::int64_t token = s.q_start + i;
    const std::int64_t head = key_head * problem.group() + flat % problem.group();
    TileRow row;
    row.q = address<const std::byte>(args.q, token * args.q.stride(0) + head * args.q.stride(1));
    row.out = address<std::byte>(args.out, token * args.out.stride(0) + head * args.out.stride(1));
    if (problem.lse) {
      row.lse = args.lse.as<float>() + head * args.lse.stride(0) + token * args.lse.stride(1);
    }
    if (problem.sinks) row.sink = options.sinks.as<const float>() + head * options.sinks.stride(0);
    row.visible = problem.mask.visible(s, i);
    if (problem.alibi && !row.visible.empty()) {
      const std::int64_t n = slopes.rank() == 2 ? work.sequence * slopes.stride(0) : 0;
      row.slope = slopes.as<const float>()[n + head * slopes.stride(-1)];
      const std::int64_t centre = i + problem.mask.shift(s);
      row.diagonal = std::clamp(centre, row.visible.begin, row.visible.end - 1);
      row.lse_offset = -double{row.slope} * std::abs(static_cast<double>(centre - row.diagonal));
    }
    rows[r] = row;
  }
}

void run(const TileKernel& kernel, const AttentionCall& call, const Plan& any_plan,
         const RunContext& context) {
  const auto& plan = dynamic_cast<const AttentionPlan&>(any_plan);
  const AttentionProblem& problem = call.problem;
  const ScoreRule rule = score_rule(problem);
  const std::int64_t heads = problem.heads_k;
  std::byte* const parts_memory =
      context.workspace.data() + plan.scratch_bytes * static_cast<std::size_t>(context.threads);

  const auto with_tile = [&](const std::vector<Work>& list, std::int64_t item, int worker,
                             const auto& body) {
    const Work& work = list[static_cast<std::size_t>(item / heads)];
    const std::int64_t head = item % heads;
    Cutter memory(context.workspace.data() + plan.scratch_bytes * static_cast<std::size_t>(worker));
    const WorkerScratch w = cut_scratch(problem, kernel, plan.tile_rows, plan.long_keys, memory);
    const std::span rows(w.rows, static_cast<std::size_t>(work.rows));
    fill_rows(call, work, head, rows);
    const AttentionTile tile{problem, rule, rows, key_rows(call, call.args.k, work.sequence, head),
                             key_rows(call, call.args.v, work.sequence, head)};
    body(work, head, tile, w.tile);
  };
  const auto part_of = [&](const Work& work, std::int64_t split, std::int64_t head) {
    const std::int64_t floats = part_floats(problem, kernel, work.rows);
    const std::int64_t at = work.parts + ((split - work.split_begin) * heads + head) * floats;
    Cutter memory(parts_memory + at * std::int64_t{sizeof(float)});
    return memory.take_states(round_up(work.rows, kernel.block_rows),
                              padded_value(problem, kernel.panel));
  };

  const auto attend = [&](const Work& work, std::int64_t head, const AttentionTile& tile,
                          TileScratch w) {
    kernel.load_queries(tile, w);
    if (work.parts >= 0) {
      w.part = part_of(work, work.split_begin, head);
      kernel.attend(tile, work.split_begin, w);
      return;
    }
    const bool one = work.split_end - work.split_begin == 1;
    for (std::int64_t split = work.split_begin; split < work.split_end; ++split) {
      kernel.attend(tile, split, w);
      if (!one) kernel.merge(tile, split, w.part, w.total);
    }
    kernel.finish(tile, one ? w.part : w.total);
  };
  const auto join = [&](const Work& work, std::int64_t head, const AttentionTile& tile,
                        const TileScratch& w) {
    for (std::int64_t split = work.split_begin; split < work.split_end; ++split) {
      kernel.merge(tile, split, part_of(work, split, head), w.total);
    }
    kernel.finish(tile, w.total);
  };

  const std::int64_t items = std::ssize(plan.work) * heads;
  const std::int64_t joins = std::ssize(plan.joins) * heads;
  parallel_for_items(
      items, context,
      [&](std::int64_t item, int worker) { with_tile(plan.work, item, worker, attend); }, 0,
      items + joins);
  parallel_for_items(
      joins, context,
      [&](std::int64_t item, int worker) { with_tile(plan.joins, item, worker, join); }, items,
      items + joins);
}

std::optional<Fault> decline(const TileKernel& kernel) {
  if (kernel.supported() && !injected_faults().hide_simd) return {};
  return make_fault(Code::simd_missing, {.argument = std::string(kernel.name),
                                         .limit = std::string(kernel.instructions)});
}

template <std::size_t index>
AttentionImplementation row() {
  return {tile_kernels()[index].name,
          [](const AttentionCall&) { return decline(tile_kernels()[index]); },
          [](const AttentionCall& call, int threads) {
            return make_plan(tile_kernels()[index], call, threads);
          },
          [](const AttentionCall& call, const Plan& plan, const RunContext& context) {
            run(tile_kernels()[index], call, plan, context);
          }};
}

}  // namespace

std::span<const AttentionImplementation> attention() {
  static const std::vector<AttentionImplementation> rows = [] {
    std::vector<AttentionImplementation> list;
    if (!tile_kernels().empty()) list.push_back(row<0>());
    if (tile_kernels().size() > 1) list.push_back(row<1>());
    return list;
  }();
  return rows;
}

}  // namespace packattn::cpu
