// SPDX-License-Identifier: Apache-2.0
#include "core/check_layers.h"
#include "core/layer_checker.h"
#include "core/slots.h"

namespace packattn {
namespace {

/// The states: one source, of the right sizes, one a sequence unless slots choose them.
bool check_states(const ShortConvolutionArgs& args, std::int64_t count, LayerChecker& layer,
                  const CheckedConvolution& checked, FaultList& faults) {
  const NamedView state{args.state, "state"}, initial{args.initial_state, "initial_state"},
      final{args.final_state, "final_state"};
  for (const NamedView& other : {initial, final}) {
    if (args.state.present() && other.view.present()) {
      faults.add(Code::state_sources, {.argument = std::string(other.name), .value = "state"});
    }
  }
  bool fine = true;
  for (const NamedView& t : {state, initial, final}) {
    if (!t.view.present()) continue;
    const std::int64_t rows = t.view.rank() > 0 ? t.view.size(0) : 0;
    // Without a weight nobody knows how many inputs a state holds.
    const std::int64_t inputs = checked.taps > 0    ? checked.taps - 1
                                : t.view.rank() > 0 ? t.view.size(-1)
                                                    : 0;
    fine = layer.check_beside(t, {rows, checked.problem.width, inputs},
                              &t.view != &args.initial_state) &&
           fine;
    if (!args.slots.present() && count >= 0 && rows != count) {
      faults.add(Code::state_count, {.argument = std::string(t.name),
                                     .value = std::to_string(rows),
                                     .limit = std::to_string(count)});
      fine = false;
    }
  }
  if (args.initial_state.present() && args.final_state.present()) {
    layer.checks().same_dtype(final, initial);
  }
  return fine;
}

/// The slot tensor by itself; fine when absent.
bool check_slots(const ShortConvolutionArgs& args, std::int64_t count, TensorChecks& checks) {
  if (!args.slots.present()) return true;
  const NamedView slots{args.slots, "slots"};
  if (!args.state.present() && !args.initial_state.present() && !args.final_state.present()) {
    checks.faults().add(Code::slots_without_state, {.argument = "slots", .value = "state"});
    return false;
  }
  if (!checks.given(slots, 1, "[N]") || !checks.dtype(slots, {DType::i32, DType::i64}) ||
      !checks.same_device(slots, {args.x, "x"}) || !checks.addressable(slots)) {
    return false;
  }
  if (count < 0 || args.slots.size(0) == count) return true;
  checks.faults().add(Code::slot_count, {.argument = "slots",
                                         .value = std::to_string(args.slots.size(0)),
                                         .limit = std::to_string(count)});
  return false;
}

/// Rows of the states for every sequence. Slots on a device stay there: nothing to resolve.
void resolve(const ShortConvolutionArgs& args, std::int64_t null_slot, CheckedConvolution& checked,
             FaultList& faults) {
  const Slots slots{&args.slots, "slots"};
  if (!slots.readable()) return;
  SlotUse use(null_slot, faults);
  for (std::size_t n = 0; n < checked.sequences.size(); ++n) {
    KdaSequence& s = checked.sequences[n];
    const auto row = [&](const TensorView& pool) -> std::int64_t {
      if (!pool.present()) return -1;
      return slots.given() ? use.in_pool(slots, n, 0, pool) : static_cast<std::int64_t>(n);
    };
    s.skipped = slots.given() && slots.at(n, 0) == null_slot;
    s.initial = row(checked.initial);
    s.final = row(checked.final);
    if (s.final >= 0) use.note_write(slots, n, 0, s.final);
  }
}

}  // namespace

CheckedConvolution check_short_convolution_call(const ShortConvolutionArgs& args,
                                                const detail::BatchState& batch,
                                                const ShortConvolutionOptions& options,
                                                FaultList& faults) {
  const NamedView x{args.x, "x"}, weight{args.weight, "weight"}, bias{args.bias, "bias"},
      out{args.out, "out"};
  CheckedConvolution checked;
  LayerChecker layer(x, faults);
  layer.check_input(2, 2, "[T, D]");
  checked.problem = layer.problem();
  const std::int64_t width = checked.problem.width;
  if (layer.checks().given(weight, 2, "[D, W]")) {
    checked.taps = std::max<std::int64_t>(1, args.weight.size(1));
    layer.check_beside(weight, {width, checked.taps});
  }
  layer.check_beside(bias, {width});
  layer.check_output(out, "[T, D]");
  if (!batch.shared) faults.add(Code::keys_boundaries, {.argument = "short_convolution"});
  if (layer.fine()) {
    check_batch_device(batch, args.x.device(), faults);
    if (batch.host_known) check_rows("x", args.x.size(0), batch.q, batch.capacity, faults);
  }
  for (const Sequence& s : batch.sequences) {
    checked.sequences.push_back({.row = 0, .start = s.q_start, .length = s.q_length});
  }
  checked.initial = args.state.present() ? args.state : args.initial_state;
  checked.final = args.state.present() ? args.state : args.final_state;
  const bool states_fit = check_states(args, batch.q.count, layer, checked, faults);
  if (check_slots(args, batch.q.count, layer.checks()) && states_fit) {
    resolve(args, options.null_slot, checked, faults);
  }
  layer.check_overlaps({out, {args.state, "state"}, {args.final_state, "final_state"}},
                       {x, weight, bias, {args.initial_state, "initial_state"}});
  return checked;
}

}  // namespace packattn
