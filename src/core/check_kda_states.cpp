// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/check_kda.h"

namespace packattn {
namespace {

class StateChecker {
 public:
  StateChecker(Op op, const KdaArgs& args, const KdaOptions& options, bool shapes_known,
               CheckedKda& checked, FaultList& faults)
      : op_(op),
        args_(args),
        options_(options),
        shapes_known_(shapes_known),
        checked_(checked),
        faults_(faults),
        checks_(faults) {}

  void run() {
    check_sources();
    check_layout();
    const bool pools_fit = check_pools();
    check_chunk_states();
    check_kda_slots(op_, args_, options_, pools_fit, checked_, faults_);
  }

 private:
  void check_sources() {
    for (const NamedView& other : {initial_state(), final_state()}) {
      if (args_.state.present() && other.view.present())
        conflict(Code::state_sources, other, "state");
    }
    for (const NamedView& other : {read_slots(), write_slots()}) {
      if (args_.slots.present() && other.view.present()) {
        conflict(Code::options_conflict, other, "slots");
      }
    }
    checked_.initial = args_.state.present() ? args_.state : args_.initial_state;
    checked_.final = args_.state.present() ? args_.state : args_.final_state;
  }

  void check_layout() {
    for (const NamedView& t : {state(), initial_state(), final_state(), chunk_states()}) {
      if (!t.view.present() || options_.state_layout) continue;
      faults_.add(Code::state_layout_missing, {.argument = std::string(t.name)});
      break;
    }
    p().state_layout = options_.state_layout.value_or(StateLayout::k_first);
  }

  /// States fit by shape and number; says whether rows can be resolved.
  bool check_pools() {
    bool fine = true;
    for (const NamedView& t : {state(), initial_state(), final_state()}) {
      if (!t.view.present()) continue;
      const bool written = &t.view != &args_.initial_state;
      if (!check_states(t, written)) {
        fine = false;
        continue;
      }
      p().state_dtype = t.view.dtype();
      const bool pooled = args_.slots.present() || (written && args_.write_slots.present()) ||
                          (&t.view != &args_.final_state && args_.read_slots.present());
      if (!pooled && count() >= 0 && t.view.size(0) != count()) {
        faults_.add(Code::state_count, {.argument = std::string(t.name),
                                        .value = std::to_string(t.view.size(0)),
                                        .limit = std::to_string(count())});
        fine = false;
      }
    }
    if (args_.initial_state.present() && args_.final_state.present()) {
      checks_.same_dtype(final_state(), initial_state());
    }
    return fine;
  }

  bool check_states(NamedView t, bool written) {
    if (!checks_.given(t, 4, k_first() ? "[N, HV, K, V]" : "[N, HV, V, K]")) return false;
    checks_.dtype(t, {DType::f32, DType::bf16});
    if (args_.q.present()) {
      checks_.same_device(t, {args_.q, "q"});
    }
    written ? checks_.writable(t) : checks_.readable(t);
    if (!shapes_known_) return true;
    const std::int64_t heads = p().value_heads;
    const std::int64_t rows = k_first() ? p().key_dim : p().value_dim;
    const std::int64_t columns = k_first() ? p().value_dim : p().key_dim;
    const TensorView& x = t.view;
    if (x.size(1) == heads && x.size(2) == rows && x.size(3) == columns) return true;
    const bool swapped = x.size(1) == heads && x.size(2) == columns && x.size(3) == rows;
    faults_.add(Code::state_shape,
                {.argument = std::string(t.name),
                 .value = x.shape_string(),
                 .limit = fmt::format("[{}, {}, {}, {}]", x.size(0), heads, rows, columns),
                 .note = swapped && options_.state_layout
                             ? fmt::format("this is the shape of the {} layout",
                                           k_first() ? "v_first" : "k_first")
                             : ""});
    return false;
  }

  void check_chunk_states() {
    if (!args_.chunk_states.present()) return;
    if (op_ != Op::kda_chunk) {
      faults_.add(Code::chunk_states_unsupported, {.argument = "kda_recurrent"});
      return;
    }
    if (!check_states(chunk_states(), true) || !shapes_known_) return;
    // Without boundaries or a legal chunk size nobody knows how many there have to be.
    if (static_cast<std::int64_t>(checked_.sequences.size()) != count()) return;
    if (options_.chunk_size != p().chunk_size) return;
    std::int64_t chunks = 0;
    for (const KdaSequence& s : checked_.sequences)
      chunks += count_chunks(s.length, p().chunk_size);
    const TensorView& x = args_.chunk_states;
    checks_.shape(chunk_states(), {chunks, x.size(1), x.size(2), x.size(3)});
  }

  void conflict(Code code, NamedView t, const char* other) {
    faults_.add(code, {.argument = std::string(t.name), .value = other});
  }

  bool k_first() const {
    return options_.state_layout.value_or(StateLayout::k_first) == StateLayout::k_first;
  }
  std::int64_t count() const { return checked_.count; }
  KdaProblem& p() { return checked_.problem; }
  NamedView state() const { return {args_.state, "state"}; }
  NamedView initial_state() const { return {args_.initial_state, "initial_state"}; }
  NamedView final_state() const { return {args_.final_state, "final_state"}; }
  NamedView chunk_states() const { return {args_.chunk_states, "chunk_states"}; }
  NamedView read_slots() const { return {args_.read_slots, "read_slots"}; }
  NamedView write_slots() const { return {args_.write_slots, "write_slots"}; }

  Op op_;
  const KdaArgs& args_;
  const KdaOptions& options_;
  bool shapes_known_;
  CheckedKda& checked_;
  FaultList& faults_;
  TensorChecks checks_;
};

}  // namespace

void check_kda_states(Op op, const KdaArgs& args, const KdaOptions& options, bool shapes_known,
                      CheckedKda& checked, FaultList& faults) {
  StateChecker(op, args, options, shapes_known, checked, faults).run();
}

}  // namespace packattn
