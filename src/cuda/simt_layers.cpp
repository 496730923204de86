// SPDX-License-Identifier: Apache-2.0
// The device rows of the layers beside KDA.
#include <memory>
#include <optional>

#include "core/batch_state.h"
#include "cuda/layer_params.h"

namespace packattn::cuda {
namespace {

template <class Call>
std::optional<Fault> decline(const Call& call) {
  return device_fault(call.problem.device);
}
template <class Call>
std::shared_ptr<const Plan> no_plan(const Call&, int) {
  return std::make_shared<Plan>();
}

void run_l2norm(const L2NormCall& call, const Plan&, const RunContext& context) {
  const DeviceGuard guard(call.problem.device);
  const RowTensor none{TensorView{}};
  launch_norm({.x = RowTensor(call.args.x),
               .residual = none,
               .weight = none,
               .bias = none,
               .gate = none,
               .out = RowTensor(call.args.out),
               .residual_out = none,
               .rows = call.problem.rows,
               .width = call.problem.width,
               .eps = call.eps,
               .mean = false,
               .swish = false},
              "simt/l2norm", stream_of(context));
}

void run_gated_rms_norm(const GatedRmsNormCall& call, const Plan&, const RunContext& context) {
  const DeviceGuard guard(call.problem.device);
  const GatedRmsNormArgs& a = call.args;
  launch_norm({.x = RowTensor(a.x),
               .residual = RowTensor(a.residual),
               .weight = RowTensor(a.weight),
               .bias = RowTensor(a.bias),
               .gate = RowTensor(a.gate),
               .out = RowTensor(a.out),
               .residual_out = RowTensor(a.residual_out),
               .rows = call.problem.rows,
               .width = call.problem.width,
               .eps = call.options.eps,
               .mean = true,
               .swish = call.options.activation == GateActivation::swish},
              "simt/gated_rms_norm", stream_of(context));
}

void run_gate(const KdaCall& call, const Plan&, const RunContext& context) {
  const DeviceGuard guard(call.problem.device);
  KdaParams params = kda_params(call);
  params.length = static_cast<std::int32_t>(call.args.g.size(1));
  const TensorView& g = call.args.g;
  launch_kda_gate(params, g.size(0), moves_runs(g) && moves_runs(call.args.out),
                  stream_of(context));
}

// ---- short convolution ----------------------------------------------------------------------

constexpr std::int32_t tile_tokens = 64;

struct ConvolutionPlan : Plan {
  explicit ConvolutionPlan(const ShortConvolutionCall& call)
      // Without a share in its ownership: the plan is kept by the batch, or for one call.
      : batch(std::shared_ptr<const detail::BatchState>(std::shared_ptr<void>(), call.batch)),
        schedule(batch, call.args.x.size(0), call.problem.device, tile_tokens) {}
  PackedBatch batch;
  Schedule schedule;
};

std::size_t row_bytes(const ShortConvolutionCall& call) {
  if (!call.args.slots.present()) return 0;
  return DeviceWorkspace::aligned(static_cast<std::size_t>(call.count) * sizeof(KdaRow));
}

std::shared_ptr<const Plan> plan_convolution(const ShortConvolutionCall& call, int) {
  return std::make_shared<ConvolutionPlan>(call);
}

WindowPool window_pool(const TensorView& x) {
  if (!x.present()) return {};
  return {x.data(), x.dtype(), x.stride(0), x.stride(1)};
}

/// The sequences' rows of the states, from slots; the kernel that resolves those of KDA does.
const KdaRow* resolve_rows(const ShortConvolutionCall& call, DeviceWorkspace& workspace,
                           cudaStream_t stream) {
  const TensorView& slots = call.args.slots;
  if (!slots.present() || call.count == 0) return nullptr;
  const auto pool = [](const TensorView& x) {
    KdaPool rows{};
    rows.data = x.data();
    rows.rows = x.present() ? x.size(0) : 0;
    return rows;
  };
  KdaParams params{};
  params.count = static_cast<std::int32_t>(call.count);
  params.null_slot = call.null_slot;
  params.initial = pool(call.initial);
  params.final = pool(call.final);
  const KdaSlotView view{slots.data(), slots.stride(0), 0, 1, slots.dtype() == DType::i64};
  auto* resolved = workspace.take<KdaRow>(static_cast<std::size_t>(call.count));
  launch_kda_slots(params,
                   {.read = view,
                    .write = view,
                    .accepted = {},
                    .shared = true,
                    .in_place = call.args.state.present(),
                    .columns = false},
                   resolved, status_word(call.problem.device.index, stream), stream);
  return resolved;
}

void run_convolution(const ShortConvolutionCall& call, const Plan& made,
                     const RunContext& context) {
  const auto& plan = static_cast<const ConvolutionPlan&>(made);
  const DeviceGuard guard(call.problem.device);
  const cudaStream_t stream = stream_of(context);
  raise_earlier_fault(call.problem.device.index, stream);
  DeviceWorkspace workspace(context, plan.schedule.workspace_bytes() + row_bytes(call));
  const ShortConvolutionArgs& a = call.args;
  const std::int64_t rows = a.x.size(0);
  ConvolutionParams params{.x = RowTensor(a.x),
                           .out = RowTensor(a.out),
                           .weight = RowTensor(a.weight),
                           .bias = RowTensor(a.bias),
                           .initial = window_pool(call.initial),
                           .final = window_pool(call.final),
                           .batch = {},
                           .rows = nullptr,
                           .tile_tokens = tile_tokens,
                           .width = call.problem.width,
                           .taps = call.taps,
                           .silu = call.silu};
  params.batch = plan.schedule.prepare(planner_input(plan.batch, rows, rows, 0, 0, tile_tokens),
                                       workspace, stream);
  params.rows = resolve_rows(call, workspace, stream);
  launch_convolution(params, plan.schedule.tile_bound(), stream);
}

}  // namespace

KdaImplementation simt_kda_gate() {
  return {.name = "simt/kda_gate",
          .decline = decline<KdaCall>,
          .plan = no_plan<KdaCall>,
          .run = run_gate,
          .on_host = false};
}
L2NormImplementation simt_l2norm() {
  return {.name = "simt/l2norm",
          .decline = decline<L2NormCall>,
          .plan = no_plan<L2NormCall>,
          .run = run_l2norm,
          .on_host = false};
}
GatedRmsNormImplementation simt_gated_rms_norm() {
  return {.name = "simt/gated_rms_norm",
          .decline = decline<GatedRmsNormCall>,
          .plan = no_plan<GatedRmsNormCall>,
          .run = run_gated_rms_norm,
          .on_host = false};
}
ShortConvolutionImplementation simt_short_convolution() {
  return {.name = "simt/short_convolution",
          .decline = decline<ShortConvolutionCall>,
          .plan = plan_convolution,
          .run = run_convolution,
          .on_host = false};
}

}  // namespace packattn::cuda
