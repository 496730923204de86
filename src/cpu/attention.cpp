// SPDX-License-Identifier: Apache-2.0
// Softmax attention on the CPU: carries out a plan, tile by tile. The schedule is made in
// attention_plan.cpp, the arithmetic is in attention_tile.cpp.
#include <vector>

#include "cpu/attention_amx.h"
#include "cpu/attention_plan.h"
#include "cpu/attention_rows.h"
#include "cpu/attention_tile.h"
#include "cpu/cpu.h"
#include "cpu/parallel.h"
#include "cpu/simd_support.h"
#include "errors/fault_list.h"

namespace packattn::cpu {
namespace {

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

/// The kernels of the list, best first.
const std::vector<TileKernel>& kernels() {
  static const std::vector<TileKernel> all = [] {
    std::vector<TileKernel> list(bf16_kernels().begin(), bf16_kernels().end());
    list.insert(list.end(), fp32_kernels().begin(), fp32_kernels().end());
    return list;
  }();
  return all;
}

bool takes(const TileKernel& kernel, const AttentionProblem& problem) {
  return (kernel.dtype == DType::none || kernel.dtype == problem.dtype) &&
         (!kernel.fast_here || kernel.fast_here());
}

std::optional<Fault> decline(const TileKernel& kernel, const AttentionProblem& problem) {
  if (auto missing = decline_simd(kernel.name, kernel.target)) return missing;
  if (kernel.fast_here && !kernel.fast_here()) {
    return make_fault(Code::simd_missing,
                      {.argument = std::string(kernel.name), .limit = std::string(kernel.needs)});
  }
  if (!takes(kernel, problem)) {
    return make_fault(Code::dtype_unsupported, {.argument = std::string(kernel.name),
                                                .value = to_string(problem.dtype),
                                                .limit = to_string(kernel.dtype)});
  }
  return {};
}

template <std::size_t index>
AttentionImplementation row() {
  return {kernels()[index].name,
          [](const AttentionCall& call) { return decline(kernels()[index], call.problem); },
          [](const AttentionCall& call, int threads) {
            return make_plan(kernels()[index], call, threads);
          },
          [](const AttentionCall& call, const Plan& plan, const RunContext& context) {
            run(kernels()[index], call, plan, context);
          },
          true,
          [](const AttentionCall& call) { return takes(kernels()[index], call.problem); }};
}

}  // namespace

std::span<const AttentionImplementation> attention() {
  // A row is plain functions, so each kernel's are made from its place in the list.
  static const std::vector<AttentionImplementation> rows = [] {
    using Make = AttentionImplementation (*)();
    constexpr Make makes[] = {row<0>, row<1>, row<2>, row<3>};
    std::vector<AttentionImplementation> list{amx_attention()};
    for (std::size_t i = 0; i < kernels().size(); ++i) list.push_back(makes[i]());
    return list;
  }();
  return rows;
}

}  // namespace packattn::cpu
