// SPDX-License-Identifier: Apache-2.0
// Softmax attention on AMX tiles: the list's row, its schedule, and how it is carried out. The
// arithmetic is in attention_amx_tile-inl.h.
#include "cpu/attention_amx.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "cpu/amx_support.h"
#include "cpu/attention_rows.h"
#include "cpu/cpu.h"
#include "cpu/parallel.h"
#include "errors/fault_list.h"

namespace packattn::cpu {
namespace {

constexpr std::string_view name = "cpu/attention.amx_bf16";
constexpr std::int64_t pack_keys_at_once = 256;

/// Keys of one sequence that are packed for all its tiles. What follows the place of a sequence's
/// keys belongs to its key heads, one after another.
struct SharedKeys {
  std::int64_t sequence = 0;
  std::int64_t keys = 0;
  std::size_t at = 0;  ///< bytes into the memory for packed keys
  std::size_t head_bytes = 0;
};
struct PackWork {
  std::int64_t shared = 0;  ///< index
  std::int64_t begin = 0, end = 0;
};

/// Work of one sequence, done for one key head after the other: a head's packed keys come from the
/// third-level cache once, not for every tile.
struct WorkRun { std::int64_t begin = 0, end = 0; };

struct AmxPlan : AttentionPlan {
  std::vector<SharedKeys> shared;
  std::vector<std::int64_t> shared_of;  ///< [sequence], -1 for keys packed as they are met
  std::vector<PackWork> packs;
  std::vector<WorkRun> runs;  ///< [work]: the one it belongs to
  std::size_t shared_at = 0;  ///< where in the workspace the packed keys begin
  std::size_t parts_at = 0;
};

PackedKeys cut_packed(const AmxShape& shape, std::int64_t groups, Cutter& memory) {
  PackedKeys packed;
  packed.keys = memory.take<std::byte>(groups * shape.key_group_bytes());
  packed.values = memory.take<std::byte>(groups * shape.value_group_bytes());
  packed.odd = memory.take<std::uint8_t>(groups);
  return packed;
}

std::int64_t groups_of(std::int64_t keys) { return round_up(keys, group_keys) / group_keys; }

AmxStates cut_states(const AmxShape& shape, std::int64_t rows, Cutter& memory) {
  const std::int64_t strips = round_up(rows, strip_rows) / strip_rows;
  AmxStates states;
  for (float** x : {&states.maximum, &states.sum, &states.weight}) {
    *x = memory.take(strips * strip_rows);
  }
  states.values = memory.take(strips * shape.value_strip_floats());
  return states;
}

AmxScratch cut_scratch(const AttentionProblem& problem, const AmxPlan& plan, Cutter& memory) {
  const AmxShape shape(problem);
  const std::int64_t strips = plan.tile_rows / strip_rows;
  AmxScratch w;
  w.rows = memory.take<TileRow>(plan.tile_rows);
  w.q = memory.take<std::byte>(strips * shape.query_strip_bytes());
  for (float*& scores : w.scores) scores = memory.take(block_keys * strip_rows);
  for (std::byte*& weights : w.weights) {
    weights = memory.take<std::byte>(shape.terms * block_keys / 2 * strip_rows * 4);
  }
  w.odd_values = memory.take(strips * shape.value_strip_floats());
  for (PackedKeys& block : w.blocks) block = cut_packed(shape, block_groups, memory);
  w.part = cut_states(shape, plan.tile_rows, memory);
  w.total = plan.long_keys ? cut_states(shape, plan.tile_rows, memory) : w.part;
  return w;
}

/// Rows whose queries and sums take half a second-level cache.
std::int64_t most_rows(const AmxShape& shape) {
  constexpr std::int64_t cache_bytes = 512 * 1024;
  const std::int64_t strip_bytes =
      shape.query_strip_bytes() + shape.value_strip_floats() * std::int64_t{sizeof(float)};
  return std::clamp<std::int64_t>(cache_bytes / strip_bytes, 1, 8) * strip_rows;
}

/// Keys that more than one strip needs are packed once, those of a single strip (decode) as they
/// are met. Where that happens changes no bit.
void plan_packs(const AttentionCall& call, AmxPlan& plan) {
  const AmxShape shape(call.problem);
  const auto sequences = call.batch.sequences();
  plan.shared_of.assign(sequences.size(), -1);
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& s = sequences[n];
    if (s.q_length * call.problem.group() <= strip_rows) continue;
    const std::int64_t keys = call.problem.mask.visible(s, s.q_length - 1).end;
    if (keys <= 0) continue;
    plan.shared_of[n] = std::ssize(plan.shared);
    Cutter head;
    cut_packed(shape, groups_of(keys), head);
    for (std::int64_t begin = 0; begin < keys; begin += pack_keys_at_once) {
      plan.packs.push_back(
          {std::ssize(plan.shared), begin, std::min(begin + pack_keys_at_once, keys)});
    }
    plan.shared.push_back({static_cast<std::int64_t>(n), keys, plan.workspace_bytes, head.used()});
    plan.workspace_bytes += head.used() * static_cast<std::size_t>(call.problem.heads_k);
  }
}

/// Brings the work of a sequence together, sequences and their work still the most costly first.
void find_runs(AmxPlan& plan) {
  std::map<std::int64_t, std::int64_t> order;  // of sequences, by their most costly work
  for (const Work& work : plan.work) order.try_emplace(work.sequence, std::ssize(order));
  std::stable_sort(plan.work.begin(), plan.work.end(), [&](const Work& a, const Work& b) {
    return order.at(a.sequence) < order.at(b.sequence);
  });
  for (std::int64_t begin = 0, end = 0; begin < std::ssize(plan.work); begin = end) {
    const auto at = [&](std::int64_t i) { return plan.work[static_cast<std::size_t>(i)].sequence; };
    while (end < std::ssize(plan.work) && at(end) == at(begin)) ++end;
    plan.runs.insert(plan.runs.end(), static_cast<std::size_t>(end - begin), {begin, end});
  }
}

std::shared_ptr<const Plan> make_amx_plan(const AttentionCall& call, int threads) {
  const AmxShape shape(call.problem);
  auto plan = std::make_shared<AmxPlan>();
  plan->tile_rows = fit_tile_rows(call, most_rows(shape), strip_rows, strip_rows, threads);
  const std::int64_t parts = lay_out(*plan, call, threads, [&](std::int64_t rows) {
    Cutter size;
    cut_states(shape, rows, size);
    return static_cast<std::int64_t>(size.used() / sizeof(float));
  });
  if (plan->work.empty()) return plan;
  find_runs(*plan);

  Cutter size;
  cut_scratch(call.problem, *plan, size);
  plan->scratch_bytes = size.used();
  plan->parts_at = plan->scratch_bytes * static_cast<std::size_t>(threads);
  plan->workspace_bytes = plan->parts_at + static_cast<std::size_t>(parts) * sizeof(float);
  plan_packs(call, *plan);
  return plan;
}

class Run {
 public:
  Run(const AttentionCall& call, const AmxPlan& plan, const RunContext& context)
      : call_(call),
        plan_(plan),
        context_(context),
        kernel_(*amx_kernels().attention),
        shape_(call.problem),
        rule_(score_rule(call.problem)) {}

  void operator()() const {
    const std::int64_t heads = call_.problem.heads_k;
    const std::int64_t packs = std::ssize(plan_.packs) * heads;
    const std::int64_t items = std::ssize(plan_.work) * heads;
    const std::int64_t joins = std::ssize(plan_.joins) * heads;
    const std::int64_t all = packs + items + joins;
    parallel_for_items(
        packs, context_, [&](std::int64_t item, int) { pack(item / heads, item % heads); }, 0, all);
    parallel_for_items(
        items, context_,
        [&](std::int64_t item, int worker) {
          const WorkRun run = plan_.runs[static_cast<std::size_t>(item / heads)];
          const std::int64_t place = item - run.begin * heads, works = run.end - run.begin;
          const Work& work = plan_.work[static_cast<std::size_t>(run.begin + place % works)];
          with_tile(work, place / works, worker, [&](const auto&... x) { attend(x...); });
        },
        packs, all);
    parallel_for_items(
        joins, context_,
        [&](std::int64_t item, int worker) {
          const Work& work = plan_.joins[static_cast<std::size_t>(item / heads)];
          with_tile(work, item % heads, worker, [&](const auto&... x) { join(x...); });
        },
        packs + items, all);
  }

 private:
  PackedKeys packed(std::int64_t shared, std::int64_t head) const {
    const SharedKeys& keys = plan_.shared[static_cast<std::size_t>(shared)];
    Cutter memory(context_.workspace.data() + keys.at +
                  keys.head_bytes * static_cast<std::size_t>(head));
    return cut_packed(shape_, groups_of(keys.keys), memory);
  }

  void pack(std::int64_t index, std::int64_t head) const {
    const PackWork& work = plan_.packs[static_cast<std::size_t>(index)];
    const SharedKeys& keys = plan_.shared[static_cast<std::size_t>(work.shared)];
    kernel_.pack(call_.problem, key_rows(call_, call_.args.k, keys.sequence, head),
                 key_rows(call_, call_.args.v, keys.sequence, head), {work.begin, work.end},
                 keys.keys, packed(work.shared, head));
  }

  template <class F>
  void with_tile(const Work& work, std::int64_t head, int worker, F&& body) const {
    Cutter memory(context_.workspace.data() +
                  plan_.scratch_bytes * static_cast<std::size_t>(worker));
    const AmxScratch w = cut_scratch(call_.problem, plan_, memory);
    const std::span rows(w.rows, static_cast<std::size_t>(work.rows));
    fill_rows(call_, work, head, rows);
    const AttentionTile tile{call_.problem, rule_, rows,
                             key_rows(call_, call_.args.k, work.sequence, head),
                             key_rows(call_, call_.args.v, work.sequence, head)};
    body(work, head, tile, w);
  }

  AmxStates part_of(const Work& work, std::int64_t split, std::int64_t head) const {
    Cutter size;
    cut_states(shape_, work.rows, size);
    const std::int64_t index = (split - work.split_begin) * call_.problem.heads_k + head;
    Cutter memory(context_.workspace.data() + plan_.parts_at +
                  static_cast<std::size_t>(work.parts) * sizeof(float) +
                  size.used() * static_cast<std::size_t>(index));
    return cut_states(shape_, work.rows, memory);
  }

  void attend(const Work& work, std::int64_t head, const AttentionTile& tile, AmxScratch w) const {
    const std::int64_t shared = plan_.shared_of[static_cast<std::size_t>(work.sequence)];
    PackedKeys packed_keys;
    if (shared >= 0) packed_keys = packed(shared, head);
    const PackedKeys* keys = shared >= 0 ? &packed_keys : nullptr;
    kernel_.load_queries(tile, w);
    const AmxStates part = w.part;
    w.part = work.parts >= 0 ? part_of(work, work.split_begin, head) : w.total;
    kernel_.attend(tile, work.split_begin, keys, w);  // also if there is no split: clears the sums
    if (work.parts >= 0) return;
    w.part = part;
    for (std::int64_t split = work.split_begin + 1; split < work.split_end; ++split) {
      kernel_.attend(tile, split, keys, w);
      kernel_.merge(tile, w.part, w.total);
    }
    kernel_.finish(tile, w.total);
  }

  void join(const Work& work, std::int64_t head, const AttentionTile& tile,
            const AmxScratch&) const {
    const AmxStates total = part_of(work, work.split_begin, head);
    for (std::int64_t split = work.split_begin + 1; split < work.split_end; ++split) {
      kernel_.merge(tile, part_of(work, split, head), total);
    }
    kernel_.finish(tile, total);
  }

  const AttentionCall& call_;
  const AmxPlan& plan_;
  const RunContext& context_;
  const AmxAttention& kernel_;
  AmxShape shape_;
  ScoreRule rule_;
};

std::optional<Fault> decline(const AttentionCall& call) {
  if (auto missing = decline_amx(name)) return missing;
  if (call.problem.dtype != DType::f32) return {};
  return make_fault(Code::dtype_unsupported, {.argument = std::string(name),
                                              .value = to_string(call.problem.dtype),
                                              .limit = "bf16 and fp16"});
}

}  // namespace

AttentionImplementation amx_attention() {
  return {name,
          decline,
          make_amx_plan,
          [](const AttentionCall& call, const Plan& plan, const RunContext& context) {
            Run(call, dynamic_cast<const AmxPlan&>(plan), context)();
          },
          true,
          [](const AttentionCall& call) { return has_amx() && call.problem.dtype != DType::f32; }};
}

}  // namespace packattn::cpu
