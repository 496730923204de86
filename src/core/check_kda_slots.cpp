// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "core/check_kda.h"
#include "core/slots.h"

namespace packattn {
namespace {

class SlotChecker {
 public:
  SlotChecker(Op op, const KdaArgs& args, const KdaOptions& options, CheckedKda& checked,
              FaultList& faults)
      : op_(op),
        args_(args),
        checked_(checked),
        faults_(faults),
        checks_(faults),
        use_(options.null_slot, faults) {}

  /// The slot tensors by themselves; says whether all that were given can be read.
  bool check_slots() {
    const bool shared = args_.slots.present();
    read_ = {shared ? &args_.slots : &args_.read_slots, shared ? "slots" : "read_slots"};
    write_ = {shared ? &args_.slots : &args_.write_slots, shared ? "slots" : "write_slots"};
    if (shared && !checked_.initial.present() && !checked_.final.present()) {
      no_pool(read_.named(), "state");
    }
    if (!shared) {
      if (args_.read_slots.present() && !checked_.initial.present())
        no_pool(read_slots(), "initial_state");
      if (args_.write_slots.present() && !checked_.final.present())
        no_pool(write_slots(), "final_state");
      if (args_.state.present() && args_.read_slots.present() != args_.write_slots.present()) {
        const bool read_given = args_.read_slots.present();
        faults_.add(Code::tensor_missing,
                    {.argument = read_given ? "write_slots" : "read_slots",
                     .limit = "[N]",
                     .note = "state is both read and written; slots serves both sides"});
        return false;
      }
    }
    bool fine = check_slot_tensor(read_);
    if (!shared) fine = check_slot_tensor(write_) && fine;
    return check_accepted() && fine;
  }

  /// Rows of the states for every sequence. Slots on a device stay there: nothing to resolve.
  void resolve() {
    p().slot_columns = write_.given() ? write_.columns() : 0;
    if (p().slot_columns > 0) check_columns();
    const Slots accepted{&args_.num_accepted_tokens, "num_accepted_tokens"};
    if (!read_.readable() || !write_.readable() || !accepted.readable()) return;
    checked_.column_slots.assign(
        checked_.sequences.size() * static_cast<std::size_t>(p().slot_columns), -1);
    for (std::size_t n = 0; n < checked_.sequences.size(); ++n) resolve(n);
    if (args_.state.present() && !use_.written_twice()) check_reads_of_written();
  }

 private:
  bool check_slot_tensor(const Slots& s) {
    const TensorView& x = *s.view;
    if (!x.present()) return true;
    if (x.rank() != 1 && x.rank() != 2) {
      faults_.add(Code::tensor_rank, {.argument = std::string(s.name),
                                      .value = std::to_string(x.rank()),
                                      .limit = "1 or 2 ([N] or [N, S])"});
      return false;
    }
    bool fine = checks_.given(s.named(), x.rank(), "[N] or [N, S]") &&
                checks_.dtype(s.named(), {DType::i32, DType::i64});
    if (count() >= 0 && x.size(0) != count()) {
      faults_.add(Code::slot_count, {.argument = std::string(s.name),
                                     .value = std::to_string(x.size(0)),
                                     .limit = std::to_string(count())});
      fine = false;
    }
    if (x.rank() == 2 && x.size(1) == 0) {
      faults_.add(Code::zero_size, {.argument = std::string(s.name), .position = "its columns"});
      fine = false;
    }
    return check_integers(s.named()) && fine;
  }

  /// Memory of a small integer tensor, of any stride.
  bool check_integers(NamedView t) {
    if (args_.q.present() && !checks_.same_device(t, {args_.q, "q"})) return false;
    return checks_.addressable(t);
  }

  bool check_accepted() {
    const NamedView t{args_.num_accepted_tokens, "num_accepted_tokens"};
    if (!t.view.present()) return true;
    if (!checks_.given(t, 1, "[N]") || !checks_.dtype(t, {DType::i32, DType::i64})) return false;
    if (read_.view->rank() != 2) {
      faults_.add(Code::accepted_without_columns,
                  {.argument = std::string(t.name), .value = std::string(read_.name)});
      return false;
    }
    return (count() < 0 || checks_.shape(t, {count()})) && check_integers(t);
  }

  void check_columns() {
    if (op_ == Op::kda_chunk) {
      faults_.add(Code::option_unsupported,
                  {.argument = "kda_chunk", .value = "a state per token (slots [N, S])"});
    }
    std::int64_t longest = 0;
    std::size_t at = 0;
    for (std::size_t n = 0; n < checked_.sequences.size(); ++n) {
      if (checked_.sequences[n].length <= longest) continue;
      longest = checked_.sequences[n].length;
      at = n;
    }
    if (longest <= write_.columns()) return;
    faults_.add(Code::slot_columns, {.argument = std::string(write_.name),
                                     .position = fmt::format("sequence {}", at),
                                     .value = std::to_string(write_.columns()),
                                     .limit = std::to_string(longest)});
  }

  void resolve(std::size_t n) {
    KdaSequence& s = checked_.sequences[n];
    const auto row = static_cast<std::int64_t>(n);
    if (checked_.initial.present()) s.initial = read_.given() ? read_slot(n) : row;
    if (checked_.final.present() && p().slot_columns == 0) {
      s.final = write_.given() ? write_slot(n, 0) : row;
    }
    const bool read_null = read_.given() && checked_.initial.present() && s.initial < 0;
    const bool write_null =
        write_.given() && checked_.final.present() && p().slot_columns == 0 && s.final < 0;
    s.skipped = read_null || write_null;
    if (s.skipped) s.initial = s.final = -1;
    else if (s.final >= 0) use_.note_write(write_, n, 0, s.final);
    if (s.skipped || !checked_.final.present()) return;
    for (std::int64_t c = 0; c < std::min(p().slot_columns, s.length); ++c) {
      const std::int64_t slot = write_slot(n, c);
      checked_.column_slots[n * static_cast<std::size_t>(p().slot_columns) +
                            static_cast<std::size_t>(c)] = slot;
      if (slot >= 0) use_.note_write(write_, n, c, slot);
    }
  }

  std::int64_t read_slot(std::size_t n) {
    std::int64_t column = 0;
    const TensorView& accepted = args_.num_accepted_tokens;
    if (accepted.present()) {
      const std::int64_t tokens = Slots{&accepted, ""}.at(n, 0);
      if (tokens < 1 || tokens > read_.columns()) {
        faults_.add(Code::accepted_tokens_range,
                    {.argument = "num_accepted_tokens",
                     .position = fmt::format("sequence {}", n),
                     .value = std::to_string(tokens),
                     .limit = fmt::format("1 to {}", read_.columns())});
        return -1;
      }
      column = tokens - 1;
    }
    return use_.in_pool(read_, n, column, checked_.initial);
  }

  std::int64_t write_slot(std::size_t n, std::int64_t column) {
    return use_.in_pool(write_, n, column, checked_.final);
  }

  /// A state that one sequence starts from must not be another one's result: which of the two
  /// came first would decide.
  void check_reads_of_written() {
    for (std::size_t n = 0; n < checked_.sequences.size(); ++n) {
      const std::int64_t slot = checked_.sequences[n].initial;
      const std::int64_t writer = slot < 0 ? -1 : use_.writer_of(slot);
      if (writer < 0 || writer == static_cast<std::int64_t>(n)) continue;
      faults_.add(Code::slot_read_and_written, {.argument = std::string(write_.name),
                                                .position = fmt::format("sequence {}", writer),
                                                .value = std::to_string(slot),
                                                .limit = fmt::format("sequence {}", n)});
    }
  }

  void no_pool(NamedView slots, const char* pool) {
    faults_.add(Code::slots_without_state, {.argument = std::string(slots.name), .value = pool});
  }

  std::int64_t count() const { return checked_.count; }
  KdaProblem& p() { return checked_.problem; }
  NamedView read_slots() const { return {args_.read_slots, "read_slots"}; }
  NamedView write_slots() const { return {args_.write_slots, "write_slots"}; }

  Op op_;
  const KdaArgs& args_;
  CheckedKda& checked_;
  FaultList& faults_;
  TensorChecks checks_;
  SlotUse use_;
  Slots read_, write_;
};

}  // namespace

void check_kda_slots(Op op, const KdaArgs& args, const KdaOptions& options, bool pools_fit,
                     CheckedKda& checked, FaultList& faults) {
  SlotChecker checker(op, args, options, checked, faults);
  if (checker.check_slots() && pools_fit) checker.resolve();
}

}  // namespace packattn
