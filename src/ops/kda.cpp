// SPDX-License-Identifier: Apache-2.0
#include "packattn/kda.h"

#include <numeric>

#include "core/batch_state.h"
#include "core/check_attention.h"
#include "core/check_kda.h"
#include "core/finish_sequences.h"
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
ImplementationList<KdaCall> kda_list(Op op) {
  static const auto recurrent =
      with_reference(cuda::kda_recurrent(), cpu::kda_recurrent(), ref::kda_recurrent());
  static const auto chunk = with_reference(cuda::kda_chunk(), cpu::kda_chunk(), ref::kda_chunk());
  return op == Op::kda_chunk ? chunk : recurrent;
}

namespace {

/// Null `batch` is the [B, T] form.
CheckedKda check(Op op, const KdaArgs& args, const detail::BatchState* batch,
                 const KdaOptions& options, const Context& context, FaultList& faults) {
  check_context(context, faults);
  check_implementation_name(to_string(op), kda_list(op), context.implementation, faults);
  CheckedKda kda = check_kda_call(op, args, batch, options, context.check_level, faults);
  if (context.check_level == CheckLevel::full && faults.empty()) {
    check_device_values(op, args, batch, options, context.stream, faults);
  }
  return kda;
}

CheckedKda checked(Op op, const KdaArgs& args, const detail::BatchState* batch,
                   const KdaOptions& options, const Context& context) {
  FaultList faults;
  CheckedKda result = check(op, args, batch, options, context, faults);
  std::move(faults).throw_if_any();
  return result;
}

KdaCall call_of(const KdaArgs& args, const CheckedKda& kda, const detail::BatchState* batch,
                const KdaOptions& options) {
  return {args,      kda.problem,       kda.sequences, kda.column_slots, kda.initial, kda.final,
          kda.count, options.null_slot, batch};
}

// Of the recurrence: the state decays, is read twice and written once.
double multiply_adds(const KdaCall& call) {
  double tokens = 0;
  for (const KdaSequence& s : call.sequences) tokens += static_cast<double>(s.length);
  const KdaProblem& p = call.problem;
  return 4 * tokens * static_cast<double>(p.value_heads * p.key_dim * p.value_dim);
}

/// A call that passed its checks, with the row that takes it and its schedule.
struct Prepared {
  CheckedKda kda;
  KdaCall call;
  const KdaImplementation* row;
  std::shared_ptr<const Plan> plan;
  int threads;

  Prepared(Op op, const KdaArgs& args, const detail::BatchState* batch, const KdaOptions& options,
           const Context& context)
      : kda(checked(op, args, batch, options, context)),
        call(call_of(args, kda, batch, options)),
        threads(resolve_threads(context.threads, multiply_adds(call))) {
    row = &select(kda_list(op), call, context.implementation);
    const auto make = [this] { return row->plan(call, threads); };
    plan = batch == nullptr ? make() : batch->plans.get(row->name, kda.problem, threads, make);
  }
  Prepared(const Prepared&) = delete;  // `call` points into it
  Prepared& operator=(const Prepared&) = delete;
};

void run(Op op, const KdaArgs& args, const detail::BatchState* batch, const KdaOptions& options,
         const Context& context) {
  const Prepared prepared(op, args, batch, options, context);
  // On a device memory is taken in stream order, and every row is the backend's business.
  const bool on_host = prepared.row->on_host;
  const Workspace workspace(context, on_host ? prepared.plan->workspace_bytes : 0);
  prepared.row->run(prepared.call, *prepared.plan,
                    {.threads = prepared.threads,
                     .workspace = workspace.bytes(),
                     .stream = context.stream,
                     .progress = context.progress ? &context.progress : nullptr});
  if (!on_host) return;
  pass_states_through(prepared.kda.sequences, prepared.kda.initial, prepared.kda.final);
  clear_skipped_rows(prepared.kda.sequences, args.out, 1);
  if (batch != nullptr) clear_unowned_rows(*batch, args.out, 1, {});
}

void run(Op op, const KdaArgs& args, const BatchSpec& spec, const KdaOptions& options,
         const Context& context) {
  FaultList faults;
  detail::BatchState state;
  detail::parse_batch(spec, state, faults);
  if (!faults.empty()) check(op, args, &state, options, context, faults);
  std::move(faults).throw_if_any();
  run(op, args, &state, options, context);
}

}  // namespace

void kda_recurrent(const KdaArgs& args, const KdaOptions& options, const Context& context) {
  run(Op::kda_recurrent, args, nullptr, options, context);
}

void kda_recurrent(const KdaArgs& args, const PackedBatch& batch, const KdaOptions& options,
                   const Context& context) {
  run(Op::kda_recurrent, args, &batch.state(), options, context);
}

void kda_recurrent(const KdaArgs& args, const BatchSpec& spec, const KdaOptions& options,
                   const Context& context) {
  run(Op::kda_recurrent, args, spec, options, context);
}

void kda_chunk(const KdaArgs& args, const KdaOptions& options, const Context& context) {
  run(Op::kda_chunk, args, nullptr, options, context);
}

void kda_chunk(const KdaArgs& args, const PackedBatch& batch, const KdaOptions& options,
               const Context& context) {
  run(Op::kda_chunk, args, &batch.state(), options, context);
}

void kda_chunk(const KdaArgs& args, const BatchSpec& spec, const KdaOptions& options,
               const Context& context) {
  run(Op::kda_chunk, args, spec, options, context);
}

std::vector<Fault> check_kda(Op op, const KdaArgs& args, const BatchSpec* spec,
                             const KdaOptions& options, const Context& context) {
  FaultList faults;
  detail::BatchState state;
  if (spec != nullptr) detail::parse_batch(*spec, state, faults);
  check(op, args, spec != nullptr ? &state : nullptr, options, context, faults);
  return std::move(faults).take();
}

std::vector<Fault> check_kda(Op op, const KdaArgs& args, const PackedBatch& batch,
                             const KdaOptions& options, const Context& context) {
  FaultList faults;
  check(op, args, &batch.state(), options, context, faults);
  return std::move(faults).take();
}

std::vector<Verdict> why_kda(Op op, const KdaArgs& args, const PackedBatch* batch,
                             const KdaOptions& options, const Context& context) {
  const detail::BatchState* state = batch != nullptr ? &batch->state() : nullptr;
  const CheckedKda kda = checked(op, args, state, options, context);
  return verdicts(kda_list(op), call_of(args, kda, state, options));
}

std::size_t kda_workspace_bytes(Op op, const KdaArgs& args, const PackedBatch* batch,
                                const KdaOptions& options, const Context& context) {
  const detail::BatchState* state = batch != nullptr ? &batch->state() : nullptr;
  return Prepared(op, args, state, options, context).plan->workspace_bytes;
}

std::int64_t kda_chunk_count(const PackedBatch& batch, std::int64_t chunk_size) {
  FaultList faults;
  check_chunk_size(chunk_size, faults);
  std::move(faults).throw_if_any();
  const auto sequences = batch.sequences();
  return std::accumulate(sequences.begin(), sequences.end(), std::int64_t{0},
                         [&](std::int64_t sum, const Sequence& s) {
                           return sum + count_chunks(s.q_length, chunk_size);
                         });
}

}  // namespace packattn
