// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "core/check_kda.h"

namespace packattn {
namespace {

/// Integers of a slot tensor, [N] or [N, S], by sequence and column.
struct Slots {
  const TensorView* view = nullptr;
  std::string_view name;

  bool given() const { return view->present(); }
  NamedView named() const { return {*view, name}; }
  /// 0 for [N]
  std::int64_t columns() const { return view->rank() == 2 ? view->size(1) : 0; }
  std::int64_t at(std::size_t n, std::int64_t column) const {
    const TensorView& x = *view;
    const std::int64_t offset =
        static_cast<std::int64_t>(n) * x.stride(0) + (x.rank() == 2 ? column * x.stride(1) : 0);
    return x.dtype() == DType::i32 ? x.as<std::int32_t>()[offset] : x.as<std::int64_t>()[offset];
  }
};

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
    if (!check_slots() || !pools_fit) return;
    resolve();
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
    read_pool_ = args_.state.present() ? &args_.state : &args_.initial_state;
    write_pool_ = args_.state.present() ? &args_.state : &args_.final_state;
    checked_.initial = *read_pool_;
    checked_.final = *write_pool_;
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

  /// The slot tensors by themselves; says whether all that were given can be read.
  bool check_slots() {
    const bool shared = args_.slots.present();
    read_ = {shared ? &args_.slots : &args_.read_slots, shared ? "slots" : "read_slots"};
    write_ = {shared ? &args_.slots : &args_.write_slots, shared ? "slots" : "write_slots"};
    if (shared && !read_pool_->present() && !write_pool_->present()) {
      no_pool(read_.named(), "state");
    }
    if (!shared) {
      if (args_.read_slots.present() && !read_pool_->present())
        no_pool(read_slots(), "initial_state");
      if (args_.write_slots.present() && !write_pool_->present())
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
    if (t.view.numel() == 0 || t.view.data() != nullptr) return true;
    faults_.add(Code::null_data,
                {.argument = std::string(t.name), .value = std::to_string(t.view.numel())});
    return false;
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

  /// Rows of the states for every sequence. Slots on a device stay there: nothing to resolve.
  void resolve() {
    p().slot_columns = write_.given() ? write_.columns() : 0;
    if (p().slot_columns > 0) check_columns();
    if (!p().device.is_host()) return;
    checked_.column_slots.assign(
        checked_.sequences.size() * static_cast<std::size_t>(p().slot_columns), -1);
    for (std::size_t n = 0; n < checked_.sequences.size(); ++n) resolve(n);
    if (args_.state.present() && !duplicate_) check_reads_of_written();
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
    if (read_pool_->present()) s.initial = read_.given() ? read_slot(n) : row;
    if (write_pool_->present() && p().slot_columns == 0) {
      s.final = write_.given() ? write_slot(n, 0) : row;
    }
    const bool read_null = read_.given() && read_pool_->present() && s.initial < 0;
    const bool write_null =
        write_.given() && write_pool_->present() && p().slot_columns == 0 && s.final < 0;
    s.skipped = read_null || write_null;
    if (s.skipped) s.initial = s.final = -1;
    else if (s.final >= 0) note_write(n, 0, s.final);
    if (s.skipped || !write_pool_->present()) return;
    for (std::int64_t c = 0; c < std::min(p().slot_columns, s.length); ++c) {
      const std::int64_t slot = write_slot(n, c);
      checked_.column_slots[n * static_cast<std::size_t>(p().slot_columns) +
                            static_cast<std::size_t>(c)] = slot;
      if (slot >= 0) note_write(n, c, slot);
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
    return in_pool(read_, n, column, *read_pool_);
  }

  std::int64_t write_slot(std::size_t n, std::int64_t column) {
    return in_pool(write_, n, column, *write_pool_);
  }

  /// The slot, or -1 for the null slot. An entry that serves both sides is reported once.
  std::int64_t in_pool(const Slots& s, std::size_t n, std::int64_t column, const TensorView& pool) {
    const std::int64_t slot = s.at(n, column);
    if (slot == options_.null_slot) return -1;
    if (slot >= 0 && slot < pool.size(0)) return slot;
    if (reported_.emplace(s.view, n, column).second) {
      faults_.add(Code::slot_range, {.argument = std::string(s.name),
                                     .position = position(s, n, column),
                                     .value = std::to_string(slot),
                                     .limit = fmt::format("0 to {}", pool.size(0) - 1)});
    }
    return -1;
  }

  void note_write(std::size_t n, std::int64_t column, std::int64_t slot) {
    const auto [first, added] = writer_.try_emplace(slot, n);
    if (added || !write_.given()) return;
    duplicate_ = true;
    faults_.add(Code::slot_duplicate,
                {.argument = std::string(write_.name),
                 .position = position(write_, n, column),
                 .value = std::to_string(slot),
                 .note = fmt::format("sequence {} writes it too", first->second)});
  }

  /// A state that one sequence starts from must not be another one's result: which of the two
  /// came first would decide.
  void check_reads_of_written() {
    for (std::size_t n = 0; n < checked_.sequences.size(); ++n) {
      const std::int64_t slot = checked_.sequences[n].initial;
      const auto found = writer_.find(slot);
      if (slot < 0 || found == writer_.end() || found->second == n) continue;
      faults_.add(Code::slot_read_and_written,
                  {.argument = std::string(write_.name),
                   .position = fmt::format("sequence {}", found->second),
                   .value = std::to_string(slot),
                   .limit = fmt::format("sequence {}", n)});
    }
  }

  static std::string position(const Slots& s, std::size_t n, std::int64_t column) {
    return s.columns() > 0 ? fmt::format("[{}, {}]", n, column) : fmt::format("index {}", n);
  }

  void no_pool(NamedView slots, const char* pool) {
    faults_.add(Code::slots_without_state, {.argument = std::string(slots.name), .value = pool});
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
  const TensorView* read_pool_ = nullptr;
  const TensorView* write_pool_ = nullptr;
  Slots read_, write_;
  std::set<std::tuple<const TensorView*, std::size_t, std::int64_t>> reported_;
  bool duplicate_ = false;
  std::unordered_map<std::int64_t, std::size_t> writer_;  ///< slot to the sequence that writes it
};

}  // namespace

void check_kda_states(Op op, const KdaArgs& args, const KdaOptions& options, bool shapes_known,
                      CheckedKda& checked, FaultList& faults) {
  StateChecker(op, args, options, shapes_known, checked, faults).run();
}

}  // namespace packattn
