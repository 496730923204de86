// SPDX-License-Identifier: Apache-2.0
#include "packattn/layers.h"

#include "core/batch_state.h"
#include "core/check_attention.h"
#include "core/check_layers.h"
#include "core/finish_sequences.h"
#include "core/select.h"
#include "core/unowned_rows.h"
#include "core/workspace.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "ops/lists.h"
#include "ref/ref.h"

namespace packattn {
// Best first, the reference last. The first row that takes a call runs it.
ImplementationList<KdaCall> gate_list() {
  static const auto list = with_reference(cuda::kda_gate(), cpu::kda_gate(), ref::kda_gate());
  return list;
}
ImplementationList<L2NormCall> l2norm_list() {
  static const auto list = with_reference(cuda::l2norm(), cpu::l2norm(), ref::l2norm());
  return list;
}
ImplementationList<GatedRmsNormCall> gated_rms_norm_list() {
  static const auto list =
      with_reference(cuda::gated_rms_norm(), cpu::gated_rms_norm(), ref::gated_rms_norm());
  return list;
}
ImplementationList<ShortConvolutionCall> short_convolution_list() {
  static const auto list =
      with_reference(cuda::short_convolution(), cpu::short_convolution(), ref::short_convolution());
  return list;
}

namespace {

/// `operations` of one element, about: what decides whether a second thread is worth waking.
/// `plans` keeps the schedules that implementations on a device make. Returns whether the host ran
/// it.
template <class Call>
bool run(ImplementationList<Call> list, const Call& call, std::int64_t elements, double operations,
         const Context& context, PlanCache* plans = nullptr) {
  const int threads = resolve_threads(context.threads, static_cast<double>(elements) * operations);
  const Implementation<Call>& row = select(list, call, context.implementation);
  const auto make = [&] { return row.plan(call, threads); };
  std::shared_ptr<const Plan> plan;
  if constexpr (std::is_same_v<Call, ShortConvolutionCall>) {
    if (!row.on_host) plan = plans->get(row.name, call.problem, threads, make);
  }
  if (plan == nullptr) plan = make();
  const Workspace workspace(context, row.on_host ? plan->workspace_bytes : 0);
  row.run(call, *plan,
          {.threads = threads,
           .workspace = workspace.bytes(),
           .stream = context.stream,
           .progress = context.progress ? &context.progress : nullptr});
  return row.on_host;
}

KdaProblem check_gate(const KdaGateArgs& args, const KdaGateOptions& options,
                      const Context& context, FaultList& faults) {
  check_context(context, faults);
  check_implementation_name("kda_gate", gate_list(), context.implementation, faults);
  return check_kda_gate_call(args, options, faults);
}

LayerProblem check_norm(const L2NormArgs& args, const L2NormOptions& options,
                        const Context& context, FaultList& faults) {
  check_context(context, faults);
  check_implementation_name("l2norm", l2norm_list(), context.implementation, faults);
  return check_l2norm_call(args, options, faults);
}

LayerProblem check_norm(const GatedRmsNormArgs& args, const GatedRmsNormOptions& options,
                        const Context& context, FaultList& faults) {
  check_context(context, faults);
  check_implementation_name("gated_rms_norm", gated_rms_norm_list(), context.implementation,
                            faults);
  return check_gated_rms_norm_call(args, options, faults);
}

CheckedConvolution check_convolution(const ShortConvolutionArgs& args,
                                     const detail::BatchState& batch,
                                     const ShortConvolutionOptions& options, const Context& context,
                                     FaultList& faults) {
  check_context(context, faults);
  check_implementation_name("short_convolution", short_convolution_list(), context.implementation,
                            faults);
  return check_short_convolution_call(args, batch, options, faults);
}

/// What a check found, if it found no fault.
template <class Check>
auto legal(Check&& check) {
  FaultList faults;
  auto result = check(faults);
  std::move(faults).throw_if_any();
  return result;
}

template <class Check>
std::vector<Fault> faults_of(Check&& check) {
  FaultList faults;
  check(faults);
  return std::move(faults).take();
}

KdaArgs as_kda(const KdaGateArgs& args) {
  return {.g = args.g, .out = args.out, .A_log = args.A_log, .dt_bias = args.dt_bias};
}

ShortConvolutionCall call_of(const ShortConvolutionArgs& args, const detail::BatchState& batch,
                             const ShortConvolutionOptions& options, const CheckedConvolution& c) {
  return {args,    c.problem,     options.silu,      c.taps, c.sequences, c.initial,
          c.final, batch.q.count, options.null_slot, &batch};
}

void run_convolution(const ShortConvolutionArgs& args, const detail::BatchState& batch,
                     const ShortConvolutionOptions& options, const Context& context) {
  const auto c =
      legal([&](FaultList& f) { return check_convolution(args, batch, options, context, f); });
  const ShortConvolutionCall call = call_of(args, batch, options, c);
  const bool on_host =
      run(short_convolution_list(), call, c.problem.rows * c.problem.width,
          static_cast<double>(c.taps) + (options.silu ? 20 : 1), context, &batch.plans);
  if (!on_host) return;
  pass_states_through(c.sequences, c.initial, c.final);
  clear_skipped_rows(c.sequences, args.out, 0);
  clear_unowned_rows(batch, args.out, 0, {});
}

}  // namespace

void kda_gate(const KdaGateArgs& args, const KdaGateOptions& options, const Context& context) {
  const auto problem = legal([&](FaultList& f) { return check_gate(args, options, context, f); });
  const KdaArgs kda = as_kda(args);
  run(gate_list(), KdaCall{kda, problem, {}, {}, {}, {}}, args.g.numel(), 40, context);
}

std::vector<Fault> check_kda_gate(const KdaGateArgs& args, const KdaGateOptions& options,
                                  const Context& context) {
  return faults_of([&](FaultList& f) { check_gate(args, options, context, f); });
}

std::vector<Verdict> why_kda_gate(const KdaGateArgs& args, const KdaGateOptions& options,
                                  const Context& context) {
  const auto problem = legal([&](FaultList& f) { return check_gate(args, options, context, f); });
  const KdaArgs kda = as_kda(args);
  return verdicts(gate_list(), KdaCall{kda, problem, {}, {}, {}, {}});
}

void l2norm(const L2NormArgs& args, const L2NormOptions& options, const Context& context) {
  const auto problem = legal([&](FaultList& f) { return check_norm(args, options, context, f); });
  run(l2norm_list(), L2NormCall{args, problem, options.eps}, args.x.numel(), 3, context);
}

std::vector<Fault> check_l2norm(const L2NormArgs& args, const L2NormOptions& options,
                                const Context& context) {
  return faults_of([&](FaultList& f) { check_norm(args, options, context, f); });
}

std::vector<Verdict> why_l2norm(const L2NormArgs& args, const L2NormOptions& options,
                                const Context& context) {
  const auto problem = legal([&](FaultList& f) { return check_norm(args, options, context, f); });
  return verdicts(l2norm_list(), L2NormCall{args, problem, options.eps});
}

void gated_rms_norm(const GatedRmsNormArgs& args, const GatedRmsNormOptions& options,
                    const Context& context) {
  const auto problem = legal([&](FaultList& f) { return check_norm(args, options, context, f); });
  run(gated_rms_norm_list(), GatedRmsNormCall{args, problem, options}, args.x.numel(), 25, context);
}

std::vector<Fault> check_gated_rms_norm(const GatedRmsNormArgs& args,
                                        const GatedRmsNormOptions& options,
                                        const Context& context) {
  return faults_of([&](FaultList& f) { check_norm(args, options, context, f); });
}

std::vector<Verdict> why_gated_rms_norm(const GatedRmsNormArgs& args,
                                        const GatedRmsNormOptions& options,
                                        const Context& context) {
  const auto problem = legal([&](FaultList& f) { return check_norm(args, options, context, f); });
  return verdicts(gated_rms_norm_list(), GatedRmsNormCall{args, problem, options});
}

void short_convolution(const ShortConvolutionArgs& args, const PackedBatch& batch,
                       const ShortConvolutionOptions& options, const Context& context) {
  run_convolution(args, batch.state(), options, context);
}

void short_convolution(const ShortConvolutionArgs& args, const BatchSpec& spec,
                       const ShortConvolutionOptions& options, const Context& context) {
  FaultList faults;
  detail::BatchState state;
  detail::parse_batch(spec, state, faults);
  if (!faults.empty()) check_convolution(args, state, options, context, faults);
  std::move(faults).throw_if_any();
  run_convolution(args, state, options, context);
}

std::vector<Fault> check_short_convolution(const ShortConvolutionArgs& args,
                                           const PackedBatch& batch,
                                           const ShortConvolutionOptions& options,
                                           const Context& context) {
  return faults_of(
      [&](FaultList& f) { check_convolution(args, batch.state(), options, context, f); });
}

std::vector<Fault> check_short_convolution(const ShortConvolutionArgs& args, const BatchSpec& spec,
                                           const ShortConvolutionOptions& options,
                                           const Context& context) {
  return faults_of([&](FaultList& f) {
    detail::BatchState state;
    detail::parse_batch(spec, state, f);
    check_convolution(args, state, options, context, f);
  });
}

std::vector<Verdict> why_short_convolution(const ShortConvolutionArgs& args,
                                           const PackedBatch& batch,
                                           const ShortConvolutionOptions& options,
                                           const Context& context) {
  const auto c = legal(
      [&](FaultList& f) { return check_convolution(args, batch.state(), options, context, f); });
  return verdicts(short_convolution_list(), call_of(args, batch.state(), options, c));
}

}  // namespace packattn
