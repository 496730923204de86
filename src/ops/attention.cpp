// SPDX-License-Identifier: Apache-2.0
#include "core/batch_state.h"
#include "core/check_attention.h"
#include "core/select.h"
#include "core/unowned_rows.h"
#include "core/workspace.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "ops/device_values.h"
#include "ops/lists.h"
#include "ref/ref.h"

namespace packattn {

// Best first, the reference last. The first row that takes a call runs it.
ImplementationList<AttentionCall> attention_list() {
  static const std::vector<AttentionImplementation> list = [] {
    std::vector<AttentionImplementation> rows;
    for (const auto& backend : {cuda::attention(), cpu::attention()}) {
      rows.insert(rows.end(), backend.begin(), backend.end());
    }
    rows.push_back(ref::attention());
    return rows;
  }();
  return list;
}

namespace {

AttentionProblem check(const AttentionArgs& args, const detail::BatchState& batch,
                       const AttentionOptions& options, const Context& context, FaultList& faults) {
  check_context(context, faults);
  check_implementation_name("attention", attention_list(), context.implementation, faults);
  const AttentionProblem problem = check_attention_call(args, &batch, options, faults);
  if (context.check_level == CheckLevel::full && faults.empty()) {
    check_device_values(args, batch, options, context.stream, faults);
  }
  return problem;
}

AttentionProblem checked(const AttentionArgs& args, const detail::BatchState& batch,
                         const AttentionOptions& options, const Context& context) {
  FaultList faults;
  const AttentionProblem problem = check(args, batch, options, context, faults);
  std::move(faults).throw_if_any();
  return problem;
}

double multiply_adds(const AttentionProblem& problem, const PackedBatch& batch) {
  double scores = 0;
  for (const Sequence& s : batch.sequences()) {
    scores += static_cast<double>(s.q_length) * static_cast<double>(s.k_length);
  }
  return scores * static_cast<double>(problem.heads_q * (problem.head_dim + problem.value_dim));
}

/// A call that passed its checks, with the row that takes it and its schedule.
struct Prepared {
  AttentionProblem problem;
  AttentionCall call;
  const AttentionImplementation* row;
  std::shared_ptr<const Plan> plan;
  int threads;

  Prepared(const AttentionArgs& args, const PackedBatch& batch, const AttentionOptions& options,
           const Context& context)
      : problem(checked(args, batch.state(), options, context)),
        call{args, options, problem, batch},
        threads(resolve_threads(context.threads, multiply_adds(problem, batch))) {
    row = &select(attention_list(), call, context.implementation);
    plan = batch.state().plans.get(row->name, problem, threads,
                                   [this] { return row->plan(call, threads); });
  }
  Prepared(const Prepared&) = delete;  // `call` points into it
  Prepared& operator=(const Prepared&) = delete;
};

}  // namespace

void attention(const AttentionArgs& args, const PackedBatch& batch, const AttentionOptions& options,
               const Context& context) {
  const Prepared prepared(args, batch, options, context);
  // On a device memory is taken in stream order, which is the backend's business.
  const bool on_host = prepared.row->on_host;
  const Workspace workspace(context, on_host ? prepared.plan->workspace_bytes : 0);
  prepared.row->run(prepared.call, *prepared.plan,
                    {.threads = prepared.threads,
                     .workspace = workspace.bytes(),
                     .stream = context.stream,
                     .progress = context.progress ? &context.progress : nullptr});
  if (on_host) clear_unowned_rows(batch.state(), args.out, 0, args.lse);
}

void attention(const AttentionArgs& args, const BatchSpec& spec, const AttentionOptions& options,
               const Context& context) {
  FaultList faults;
  auto state = std::make_shared<detail::BatchState>();
  detail::parse_batch(spec, *state, faults);
  if (!faults.empty()) {
    check(args, *state, options, context, faults);
    std::move(faults).throw_if_any();
  }
  attention(args, PackedBatch(std::move(state)), options, context);
}

std::vector<Fault> check_attention(const AttentionArgs& args, const PackedBatch& batch,
                                   const AttentionOptions& options, const Context& context) {
  FaultList faults;
  check(args, batch.state(), options, context, faults);
  return std::move(faults).take();
}

std::vector<Fault> check_attention(const AttentionArgs& args, const BatchSpec& spec,
                                   const AttentionOptions& options, const Context& context) {
  FaultList faults;
  detail::BatchState state;
  detail::parse_batch(spec, state, faults);
  check(args, state, options, context, faults);
  return std::move(faults).take();
}

std::vector<Verdict> why_attention(const AttentionArgs& args, const PackedBatch& batch,
                                   const AttentionOptions& options, const Context& context) {
  const AttentionProblem problem = checked(args, batch.state(), options, context);
  return verdicts(attention_list(), AttentionCall{args, options, problem, batch});
}

std::size_t attention_workspace_bytes(const AttentionArgs& args, const PackedBatch& batch,
                                      const AttentionOptions& options, const Context& context) {
  return Prepared(args, batch, options, context).plan->workspace_bytes;
}

}  // namespace packattn
