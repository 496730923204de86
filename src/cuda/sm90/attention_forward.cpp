// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/attention_forward.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cuda/sm90/sm90.h"
#include "cuda/sm90/tensor_map.h"
#include "errors/fault_list.h"

namespace packattn::cuda::sm90 {
namespace {

constexpr std::string_view name = "sm90/attention_forward";
/// Rows of a tensor that the copy engine can address.
constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max();
/// Bytes that the copy engine wants rows, heads and pages to start at multiples of.
constexpr std::int64_t alignment = 16;
constexpr std::int64_t longest_stride = std::int64_t{1} << 40;

struct BucketSize {
  ForwardBucket bucket;
  std::int64_t head, value;
};
constexpr BucketSize buckets[] = {
    {ForwardBucket::d64, 64, 64},        {ForwardBucket::d128, 128, 128},
    {ForwardBucket::d192_128, 192, 128}, {ForwardBucket::d192, 192, 192},
    {ForwardBucket::d256, 256, 256},
};

const BucketSize* bucket_of(const AttentionProblem& p) {
  if (p.head_dim % 8 != 0 || p.value_dim % 8 != 0) return nullptr;
  for (const BucketSize& b : buckets) {
    if (p.head_dim <= b.head && p.value_dim <= b.value) return &b;
  }
  return nullptr;
}

bool reachable(const TensorView& t) {
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype()));
  bool fine = reinterpret_cast<std::uintptr_t>(t.data()) % alignment == 0;
  for (int dim = 0; dim + 1 < t.rank(); ++dim) {
    const std::int64_t stride = t.stride(dim) * bytes;
    fine = fine && t.size(dim) <= most_rows &&
           (t.size(dim) <= 1 || (stride > 0 && stride % alignment == 0 && stride < longest_stride));
  }
  return fine;
}

/// The first tensor that the copy engine cannot fetch, or whose rows cannot be written 16 bytes at
/// a time.
const char* unreachable(const AttentionArgs& a) {
  if (!reachable(a.q)) return "q";
  if (!reachable(a.k)) return "k";
  if (!reachable(a.v)) return "v";
  return reachable(a.out) ? nullptr : "out";
}

std::optional<Fault> unsupported(std::string_view who, std::string what) {
  return make_fault(Code::option_unsupported,
                    {.argument = std::string(who), .value = std::move(what)});
}

std::optional<Fault> decline(const AttentionCall& call) { return decline_hopper(name, call); }

/// Query heads of a key head that lie beside each other in a tile: as many as divide the group and
/// waste no more than a sixteenth of the rows.
int head_chunk(std::int64_t group) {
  for (int chunk = static_cast<int>(std::min<std::int64_t>(group, forward_rows)); chunk > 1;
       --chunk) {
    if (group % chunk == 0 && forward_rows % chunk <= forward_rows / 16) return chunk;
  }
  return 1;
}

std::shared_ptr<const Plan> plan(const AttentionCall& call, int) { return plan_forward(call); }

CUtensorMap query_map(const AttentionCall& call, const ForwardLaunch& launch) {
  const TensorView& q = call.args.q;
  const BoxDimension dimensions[] = {{q.size(2), 1, 64},
                                     {q.size(1), q.stride(1), launch.head_chunk},
                                     {q.size(0), q.stride(0), launch.tile_rows}};
  return tensor_map(q.data(), q.dtype(), dimensions);
}

void run(const AttentionCall& call, const Plan& base, const RunContext& context) {
  const auto& planned = static_cast<const ForwardPlan&>(base);
  AttentionRun now(call, context, planned, planned.schedule);
  run_forward(planned, call, now);
}

}  // namespace

std::optional<Fault> decline_hopper(std::string_view who, const AttentionCall& call) {
  const AttentionProblem& p = call.problem;
  if (auto fault = device_fault(p.device)) return fault;
  if (const int capability = properties(p.device.index).capability; capability / 10 != 9) {
    return unsupported(who, "compute capability " + std::to_string(capability / 10) + "." +
                                std::to_string(capability % 10) + ", only 9.0");
  }
  if (p.dtype == DType::f32) {
    return make_fault(Code::dtype_unsupported, {.argument = std::string(who),
                                                .value = to_string(p.dtype),
                                                .limit = "float16 and bfloat16"});
  }
  if (bucket_of(p) == nullptr) {
    return make_fault(Code::head_size_unsupported,
                      {.argument = std::string(who),
                       .position = "head size",
                       .value = std::to_string(p.head_dim) + " / " + std::to_string(p.value_dim),
                       .limit = "multiples of 8 up to 256"});
  }
  if (const char* tensor = unreachable(call.args)) {
    return unsupported(who, std::string(tensor) + " whose rows are not at multiples of 16 bytes");
  }
  const std::int64_t longest = std::max(call.batch.max_seqlen_q(), call.batch.max_seqlen_k());
  if (longest >= longest_sequence) {
    return unsupported(who, "a sequence of " + std::to_string(longest) + " tokens");
  }
  return {};
}

CUtensorMap key_map(const AttentionCall& call, const TensorView& t, int part_keys) {
  const bool paged = call.problem.paged;
  const BoxDimension dimensions[] = {{t.size(-1), 1, 64},
                                     {t.size(-2), t.stride(-2), 1},
                                     {t.size(-3), t.stride(-3), part_keys},
                                     {paged ? t.size(0) : 1, paged ? t.stride(0) : 0, 1}};
  // Without keys nothing is fetched, but a map wants an address.
  return tensor_map(t.data() != nullptr ? t.data() : call.args.q.data(), t.dtype(), dimensions);
}

std::shared_ptr<const ForwardPlan> plan_forward(const AttentionCall& call) {
  const AttentionProblem& p = call.problem;
  const int chunk = head_chunk(p.group());
  const auto result = std::make_shared<ForwardPlan>(call, forward_rows / chunk);
  result->head_chunk = chunk;
  result->bucket = bucket_of(p)->bucket;
  const std::int64_t items = result->schedule.tile_bound() * p.heads_q / chunk;
  const int processors = properties(p.device.index).multiprocessors;
  result->blocks = static_cast<int>(std::clamp<std::int64_t>(items, 1, processors));
  result->workspace_bytes =
      result->schedule.workspace_bytes() + DeviceWorkspace::aligned(sizeof(std::int32_t));
  return result;
}

void run_forward(const ForwardPlan& plan, const AttentionCall& call, AttentionRun& now) {
  if (call.args.q.size(0) == 0) return;
  const AttentionProblem& problem = call.problem;
  ForwardLaunch launch{};
  launch.next = now.workspace.take<std::int32_t>(1);
  launch.tile_rows = plan.schedule.tile_rows();
  launch.head_chunk = plan.head_chunk;
  launch.inverse_chunk =
      static_cast<std::uint32_t>((65536 + plan.head_chunk - 1) / plan.head_chunk);
  launch.head_slots = static_cast<std::int32_t>(problem.heads_q / plan.head_chunk);
  const int keys = forward_keys(plan.bucket);
  launch.part_keys =
      problem.paged ? static_cast<std::int32_t>(std::gcd<std::int64_t>(keys, problem.page_size))
                    : keys;
  launch.blocks = plan.blocks;
  launch.q = query_map(call, launch);
  launch.k = key_map(call, call.args.k, launch.part_keys);
  launch.v = key_map(call, call.args.v, launch.part_keys);
  check(cudaMemsetAsync(launch.next, 0, sizeof(std::int32_t), now.stream), "cudaMemsetAsync");
  const auto start =
      problem.dtype == DType::f16 ? launch_attention_forward_f16 : launch_attention_forward_bf16;
  start(now.params, launch, plan.bucket, now.stream);
}

AttentionImplementation attention_forward() {
  return {.name = name, .decline = decline, .plan = plan, .run = run, .on_host = false};
}

}  // namespace packattn::cuda::sm90
