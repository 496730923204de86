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
  const DeviceGuard guard(call.problem.device);
  const cudaStream_t stream = stream_of(context);
  raise_earlier_fault(call.problem.device.index, stream);
  DeviceWorkspace workspace(context, planned.workspace_bytes);
  AttentionParams params = attention_params(call);
  params.batch = prepare_schedule(call, planned.schedule, workspace, stream);
  SimtLaunch launch = planned.launch;
  launch.scratch = workspace.take<float>(planned.scratch_floats);
  if (call.problem.dtype == DType::f32) {
    launch_simt_attention_f32(params, launch, stream);
  } else {
    launch_simt_attention(params, launch, call.problem.dtype, stream);
  }
}

}  // namespace

std::optional<Bucket> attention_bucket(const AttentionProblem& p) {
  for (const BucketSize& b : buckets) {
    if (p.head_dim <= b.head && p.value_dim <= b.value) return b.bucket;
  }
  return {};
}

std::int64_t key_bound(const AttentionCall& call) {
  if (call.batch.host_known()) return call.batch.max_seqlen_k();
  if (!call.problem.paged) return call.args.k.size(0);
  return call.batch.state().pages_per_sequence * call.problem.page_size;
}

DeviceBatch prepare_schedule(const AttentionCall& call, const Schedule& schedule,
                             DeviceWorkspace& workspace, cudaStream_t stream) {
  const PlannerInput input =
      planner_input(call.batch, call.args.q.size(0), call.args.k.size(0), call.args.k.size(0),
                    call.problem.page_size, schedule.tile_rows());
  return schedule.prepare(input, workspace, stream);
}

AttentionParams attention_params(const AttentionCall& call) {
  const AttentionArgs& a = call.args;
  const AttentionProblem& p = call.problem;
  const auto rows = [](const TensorView& t) { return Rows{t.data(), t.stride(0), t.stride(1)}; };
  const auto keys = [&](const TensorView& t) {
    return KeyRows{t.data(), t.stride(-3), t.stride(-2), p.paged ? t.stride(0) : 0};
  };
  const auto aligned = [](const TensorView& t) {
    bool fine = reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0;
    const auto bytes = static_cast<std::int64_t>(size_of(t.dtype()));
    for (int dim = 0; dim + 1 < t.rank(); ++dim) {
      fine = fine && (t.size(dim) == 1 || t.stride(dim) * bytes % 16 == 0);
    }
    return fine;
  };
  AttentionParams params{};
  params.q = rows(a.q);
  params.out = rows(a.out);
  params.k = keys(a.k);
  params.v = keys(a.v);
  params.lse = a.lse.as<float>();
  if (a.lse.present()) params.lse_stride = a.lse.stride(0);
  params.page_size = static_cast<std::int32_t>(p.page_size);
  if (const TensorView& slopes = call.options.alibi_slopes; slopes.present()) {
    params.slopes = slopes.as<const float>();
    params.slopes_head_stride = slopes.stride(-1);
    params.slopes_sequence_stride = slopes.rank() == 2 ? slopes.stride(0) : 0;
  }
  if (const TensorView& sinks = call.options.sinks; sinks.present()) {
    params.sinks = sinks.as<const float>();
    params.sinks_stride = sinks.stride(0);
  }
  params.heads_k = static_cast<std::int32_t>(p.heads_k);
  params.group = static_cast<std::int32_t>(p.group());
  params.head_dim = static_cast<std::int32_t>(p.head_dim);
  params.value_dim = static_cast<std::int32_t>(p.value_dim);
  params.scale = static_cast<float>(p.scale);
  params.softcap = static_cast<float>(p.softcap);
  params.plain = p.softcap == 0 && !p.alibi && p.scale > 0;
  params.left = static_cast<std::int32_t>(std::min(p.mask.left, longest_sequence));
  params.right = static_cast<std::int32_t>(std::min(p.mask.right, longest_sequence));
  params.bottom_right = p.mask.align == Align::bottom_right;
  params.out_fp32 = p.out_dtype == DType::f32;
  params.aligned = aligned(a.q) && aligned(a.k) && aligned(a.v);
  return params;
}

AttentionImplementation simt_attention() {
  return {.name = name, .decline = decline, .plan = plan, .run = run, .on_host = false};
}

}  // namespace packattn::cuda
