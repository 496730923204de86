// SPDX-License-Identifier: Apache-2.0
#include "cuda/simt_attention.h"

#include <algorithm>

#include "errors/fault_list.h"

namespace packattn::cuda {
namespace {

constexpr std::string_view name = "simt/attention";

struct BucketSize {
  Bucket bucket;
  std::int64_t head, value;
};
constexpr BucketSize buckets[] = {
    {Bucket::d64, 64, 64},
    {Bucket::d128, 128, 128},
    {Bucket::d192_128, 192, 128},
    {Bucket::d256, 256, 256},
};

const BucketSize* bucket_of(const AttentionProblem& p) {
  for (const BucketSize& b : buckets) {
    if (p.head_dim <= b.head && p.value_dim <= b.value) return &b;
  }
  return nullptr;
}

std::optional<Fault> decline(const AttentionCall& call) {
  if (auto fault = device_fault(call.problem.device)) return fault;
  const AttentionProblem& p = call.problem;
  if (bucket_of(p) == nullptr || p.head_dim % 8 != 0 || p.value_dim % 8 != 0) {
    return make_fault(Code::head_size_unsupported,
                      {.argument = std::string(name),
                       .position = "head size",
                       .value = std::to_string(p.head_dim) + " / " + std::to_string(p.value_dim),
                       .limit = "multiples of 8 up to 256"});
  }
  const std::int64_t longest = std::max(call.batch.max_seqlen_q(), call.batch.max_seqlen_k());
  if (longest >= longest_sequence) {
    return make_fault(Code::option_unsupported,
                      {.argument = std::string(name),
                       .value = "a sequence of " + std::to_string(longest) + " tokens"});
  }
  return {};
}

struct SimtPlan : Plan {
  SimtPlan(const AttentionCall& call, int tile_rows)
      : schedule(call.batch, call.args.q.size(0), call.problem.device, tile_rows) {}
  Schedule schedule;
  SimtLaunch launch{};
  std::size_t scratch_floats = 0;
};

std::shared_ptr<const Plan> plan(const AttentionCall& call, int) {
  const AttentionProblem& p = call.problem;
  const int group = static_cast<int>(p.group());
  const int head_chunk = std::min(group, simt_tile);
  const auto result = std::make_shared<SimtPlan>(call, simt_tile / head_chunk);
  SimtLaunch& launch = result->launch;
  launch.head_chunk = head_chunk;
  launch.tile_rows = simt_tile / head_chunk;
  launch.head_slots = static_cast<int>(p.heads_k) * ((group + head_chunk - 1) / head_chunk);
  launch.bucket = bucket_of(p)->bucket;

  // Spread segments over blocks when the tiles alone leave multiprocessors idle.
  const int processors = properties(p.device.index).multiprocessors;
  const std::int64_t items = result->schedule.tile_bound() * launch.head_slots;
  const std::int64_t segments = (key_bound(call) + segment_keys - 1) / segment_keys;
  const bool spread = segments > 1 && items < 2 * processors;
  launch.segments = spread ? static_cast<int>(segments) : 1;
  const std::int64_t work = std::max<std::int64_t>(1, items * launch.segments);
  launch.blocks = static_cast<int>(std::min<std::int64_t>(work, 4 * processors));

  // Without spreading a block keeps its running total in scratch, as fp32 always does.
  const bool totals = segments > 1 || p.dtype == DType::f32;
  const std::int64_t slots = spread ? work : (totals ? launch.blocks : 0);
  result->scratch_floats = static_cast<std::size_t>(slots * simt_tile * (bucket_of(p)->value + 2));
  result->workspace_bytes =
      result->schedule.workspace_bytes() + DeviceWorkspace::aligned(4 * result->scratch_floats);
  return result;
}

void run(const AttentionCall& call, const Plan& base, const RunContext& context) {
  const auto& planned = static_cast<const SimtPlan&>(base);
  AttentionRun now(call, context, planned, planned.schedule);
  SimtLaunch launch = planned.launch;
  launch.scratch = now.workspace.take<float>(planned.scratch_floats);
  if (call.problem.dtype == DType::f32) {
    launch_simt_attention_f32(now.params, launch, now.stream);
  } else {
    launch_simt_attention(now.params, launch, call.problem.dtype, now.stream);
  }
}

}  // namespace

std::optional<Bucket> attention_bucket(const AttentionProblem& p) {
  for (const BucketSize& b : buckets) {
    if (p.head_dim <= b.head && p.value_dim <= b.value) return b.bucket;
  }
  return {};
}

AttentionImplementation simt_attention() {
  return {.name = name, .decline = decline, .plan = plan, .run = run, .on_host = false};
}

}  // namespace packattn::cuda
