// SPDX-License-Identifier: Apache-2.0
// The plain KDA kernels' rows of the list: what they decline, what they are launched with.
#include <algorithm>

#include "core/batch_state.h"
#include "cuda/kda_params.h"
#include "errors/fault_list.h"

namespace packattn::cuda {
namespace {

constexpr std::int64_t largest_dim = 256;
/// Longer batches would overflow the 32-bit positions within a sequence.
constexpr std::int64_t longest_batch = std::int64_t{1} << 30;
/// Sequences times heads times parts of a head have to fit a grid's index.
constexpr std::int64_t most_sequences = std::int64_t{1} << 30;

constexpr const char* recurrent_name = "simt/kda_recurrent";
constexpr const char* chunk_name = "simt/kda_chunk";

std::optional<Fault> decline(const KdaCall& call, const char* name) {
  const KdaProblem& p = call.problem;
  if (auto fault = device_fault(p.device)) return fault;
  if (p.key_dim > largest_dim || p.value_dim > largest_dim) {
    return make_fault(Code::head_size_unsupported,
                      {.argument = name,
                       .position = "head size",
                       .value = std::to_string(p.key_dim) + " / " + std::to_string(p.value_dim),
                       .limit = "sizes up to 256"});
  }
  if (call.args.q.size(1) >= longest_batch || call.count >= most_sequences) {
    return make_fault(Code::option_unsupported,
                      {.argument = name,
                       .value = std::to_string(call.args.q.size(1)) + " tokens in " +
                                std::to_string(call.count) + " sequences"});
  }
  return {};
}

/// The batch without a share in its ownership: it outlives the call.
PackedBatch batch_of(const KdaCall& call) {
  return PackedBatch(
      std::shared_ptr<const detail::BatchState>(std::shared_ptr<void>(), call.batch));
}

/// Calls with slots resolve them on the device. Others on the same batch share the plan.
bool has_slots(const KdaArgs& a) {
  return a.slots.present() || a.read_slots.present() || a.write_slots.present();
}
std::size_t row_bytes(const KdaCall& call) {
  return DeviceWorkspace::aligned(static_cast<std::size_t>(call.count) * sizeof(KdaRow));
}

std::shared_ptr<const Plan> plan(const KdaCall& call, int) {
  const auto result = std::make_shared<KdaPlan>();
  plan_kda(call, *result);
  return result;
}

/// What the decode kernel takes: a token a sequence, slots that serve both sides, states that a
/// lane moves in words.
bool is_step(const KdaCall& call, const KdaParams& p) {
  const std::int64_t tokens = call.args.q.size(1) * (call.batch == nullptr ? call.count : 1);
  const auto moves = [&](const KdaPool& pool) {
    return pool.data == nullptr || (pool.vectors && p.v_first);
  };
  const KdaArgs& a = call.args;
  const bool plain =
      !a.read_slots.present() && !a.write_slots.present() && !a.num_accepted_tokens.present() &&
      call.problem.slot_columns == 0 &&
      (!a.slots.present() || (a.state.present() && p.initial.rows <= kda_step_slots));
  return plain && moves(p.initial) && moves(p.final) && call.count <= kda_step_sequences &&
         tokens <= call.count * kda_step_tokens &&
         (call.count + 1) * p.heads * p.value_dim <= kda_step_columns;
}

KdaTensor tensor(const TensorView& x) {
  return {x.data(), x.stride(0), x.stride(1), x.stride(2), x.dtype()};
}

KdaSlotView slots(const TensorView& x) {
  if (!x.present()) return {};
  const bool columns = x.rank() == 2;
  return {x.data(), x.stride(0), columns ? x.stride(1) : 0, columns ? x.size(1) : 1,
          x.dtype() == DType::i64};
}

KdaPool pool(const TensorView& x, const KdaProblem& p) {
  if (!x.present()) return {};
  KdaPool pool{x.data(), x.size(0), x.stride(0), x.stride(1), x.stride(2), x.dtype() == DType::bf16,
               false};
  const bool v_first = p.state_layout == StateLayout::v_first;
  const auto element = static_cast<std::int64_t>(size_of(x.dtype()));
  // What a lane moves at once: its keys of a column, or its columns of a key.
  const std::int64_t run = v_first ? kda_lane_keys(p.key_dim) : kda_lane_columns;
  const std::int64_t bytes = std::min<std::int64_t>(16, run * element);
  pool.vectors =
      (v_first ? p.key_dim : p.value_dim) % run == 0 &&
      reinterpret_cast<std::uintptr_t>(x.data()) % static_cast<std::uintptr_t>(bytes) == 0;
  for (int dim = 0; dim < 3; ++dim) {
    pool.vectors = pool.vectors && (x.size(dim) == 1 || x.stride(dim) * element % bytes == 0);
  }
  return pool;
}

}  // namespace

void plan_kda(const KdaCall& call, KdaPlan& plan) {
  if (call.batch != nullptr) {
    plan.schedule.emplace(batch_of(call), call.args.q.size(1), call.problem.device, whole_sequence);
  }
  plan.workspace_bytes = plan.schedule_bytes() + row_bytes(call);
}

std::size_t kda_prelude_bytes(const KdaCall& call, const KdaPlan& plan) {
  return plan.schedule_bytes() + (has_slots(call.args) ? row_bytes(call) : 0);
}

KdaParams kda_prelude(const KdaCall& call, const KdaPlan& plan, DeviceWorkspace& workspace,
                      cudaStream_t stream) {
  KdaParams params = kda_params(call);
  if (plan.schedule) {
    const std::int64_t rows = call.args.q.size(1);
    params.batch = plan.schedule->prepare(
        planner_input(batch_of(call), rows, rows, 0, 0, whole_sequence), workspace, stream);
  }
  if (has_slots(call.args) && call.count > 0) {
    auto* rows = workspace.take<KdaRow>(static_cast<std::size_t>(call.count));
    launch_kda_slots(params, kda_slot_input(call), rows,
                     status_word(call.problem.device.index, stream), stream);
    params.rows = rows;
  }
  return params;
}

KdaParams kda_params(const KdaCall& call) {
  const KdaArgs& a = call.args;
  const KdaProblem& p = call.problem;
  KdaParams params{};
  params.q = tensor(a.q);
  params.k = tensor(a.k);
  params.v = tensor(a.v);
  params.g = tensor(a.g);
  params.beta = tensor(a.beta);
  params.out = tensor(a.out);
  if (p.has_A_log) {
    params.A_log = a.A_log.as<const float>();
    params.A_log_stride = a.A_log.stride(0);
  }
  if (p.has_dt_bias) {
    const bool flat = a.dt_bias.rank() == 1;
    params.dt_bias = a.dt_bias.as<const float>();
    params.bias_channel_stride = a.dt_bias.stride(-1);
    params.bias_head_stride = flat ? p.key_dim * a.dt_bias.stride(0) : a.dt_bias.stride(0);
  }
  params.initial = pool(call.initial, p);
  params.final = pool(call.final, p);
  params.chunk_states = pool(a.chunk_states, p);
  if (p.slot_columns > 0 && call.final.present()) {
    params.columns = slots(a.slots.present() ? a.slots : a.write_slots);
  }
  params.null_slot = call.null_slot;
  params.count = static_cast<std::int32_t>(call.count);
  params.length = static_cast<std::int32_t>(a.q.size(1));
  params.heads = static_cast<std::int32_t>(p.value_heads);
  params.group = static_cast<std::int32_t>(p.group());
  params.key_dim = static_cast<std::int32_t>(p.key_dim);
  params.value_dim = static_cast<std::int32_t>(p.value_dim);
  params.scale = p.scale;
  params.lower_bound = static_cast<float>(p.lower_bound);
  params.gate = p.gate;
  params.beta_kind = p.beta;
  params.l2norm = p.l2norm;
  params.gate_per_head = p.gate_per_head;
  params.beta_per_channel = p.beta_per_channel;
  params.v_first = p.state_layout == StateLayout::v_first;
  params.chunk_size = p.chunk_size;
  return params;
}

KdaSlotInput kda_slot_input(const KdaCall& call) {
  const KdaArgs& a = call.args;
  const bool shared = a.slots.present();
  return {.read = slots(shared ? a.slots : a.read_slots),
          .write = slots(shared ? a.slots : a.write_slots),
          .accepted = slots(a.num_accepted_tokens),
          .shared = shared,
          .in_place = a.state.present(),
          .columns = call.problem.slot_columns > 0};
}

namespace {

void run(const KdaCall& call, const Plan& base, const RunContext& context,
         void (*launch)(const KdaParams&, cudaStream_t)) {
  const auto& planned = static_cast<const KdaPlan&>(base);
  const DeviceGuard guard(call.problem.device);
  const cudaStream_t stream = stream_of(context);
  raise_earlier_fault(call.problem.device.index, stream);
  DeviceWorkspace workspace(context, kda_prelude_bytes(call, planned));
  launch(kda_prelude(call, planned, workspace, stream), stream);
}

/// One launch, without scratch memory.
void run_step(const KdaCall& call, KdaParams& params, const Plan& base, const RunContext& context) {
  const auto& planned = static_cast<const KdaPlan&>(base);
  const DeviceGuard guard(call.problem.device);
  const cudaStream_t stream = stream_of(context);
  raise_earlier_fault(call.problem.device.index, stream);
  const std::int64_t rows = call.args.q.size(1);
  KdaStepInput input{.slots = kda_slot_input(call),
                     .resolve = has_slots(call.args),
                     .capacity = false,
                     .boundaries = {},
                     .rows = rows,
                     .status = status_word(call.problem.device.index, stream),
                     .multiprocessors = properties(call.problem.device.index).multiprocessors};
  if (planned.schedule && planned.schedule->ready()) {
    params.batch = planned.schedule->uploaded();
  } else if (planned.schedule) {
    const PlannerInput given = planner_input(batch_of(call), rows, rows, 0, 0, whole_sequence);
    input.boundaries = given.q;
    input.capacity = given.capacity;
  }
  launch_kda_step(params, input, stream);
}

void run_recurrent(const KdaCall& call, const Plan& base, const RunContext& context) {
  KdaParams params = kda_params(call);
  if (is_step(call, params)) run_step(call, params, base, context);
  else run(call, base, context, launch_kda_recurrent);
}

}  // namespace

KdaImplementation simt_kda_recurrent() {
  return {.name = recurrent_name,
          .decline = [](const KdaCall& call) { return decline(call, recurrent_name); },
          .plan = plan,
          .run = run_recurrent,
          .on_host = false};
}

KdaImplementation simt_kda_chunk() {
  return {.name = chunk_name,
          .decline = [](const KdaCall& call) { return decline(call, chunk_name); },
          .plan = plan,
          .run = [](const KdaCall& call, const Plan& made,
                    const RunContext& context) { run(call, made, context, launch_kda_chunk); },
          .on_host = false};
}

}  // namespace packattn::cuda
