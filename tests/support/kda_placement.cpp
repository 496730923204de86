// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <set>

#include <gtest/gtest.h>

#include "support/boundaries.h"
#include "support/compare.h"
#include "support/kda_data.h"
#include "support/random.h"

namespace packattn::test {
namespace {

constexpr std::int64_t spare_rows = 7;

bool k_first(const KdaCase& c) {
  return c.options.state_layout.value_or(StateLayout::k_first) == StateLayout::k_first;
}

std::vector<std::int64_t> pool_shape(const KdaCase& c, std::int64_t rows) {
  return k_first(c) ? std::vector<std::int64_t>{rows, c.value_heads, c.key_dim, c.value_dim}
                    : std::vector<std::int64_t>{rows, c.value_heads, c.value_dim, c.key_dim};
}

}  // namespace

KdaPlacement::KdaPlacement(const KdaData& data) : shape_(data.shape) {
  for (const KdaSequence& s : data.sequences) lengths_.push_back(s.t);
  place_boundaries(data);
  place_tokens(data);
  place_state(data);
  for (Guarded* tensor : {&q_, &k_, &v_, &g_, &beta_, &A_log_, &dt_bias_, &state_, &initial_,
                          &slots_, &read_slots_, &write_slots_, &accepted_}) {
    tensor->freeze();
  }
  for (Guarded& tensor : boundaries_) tensor.freeze();
}

void KdaPlacement::place_boundaries(const KdaData&) {
  starts_ = running_ends(lengths_);
  tokens_ = starts_.back();
  if (shape_.rows) return;
  boundaries_.reserve(2);
  const auto keep = [&](Guarded tensor) {
    boundaries_.push_back(std::move(tensor));
    return boundaries_.back().view();
  };
  switch (shape_.boundaries) {
    case Boundaries::cu_int64:
      spec_.cu_seqlens_q = keep(integers(DType::i64, running_ends(lengths_)));
      break;
    case Boundaries::lengths: spec_.lengths_q = keep(integers(DType::i32, lengths_)); break;
    case Boundaries::starts: {
      const Gaps gaps = with_gaps(lengths_, seed_of(shape_.name));
      starts_ = gaps.starts;
      tokens_ = gaps.rows;
      spec_.starts_q = keep(integers(DType::i64, starts_));
      spec_.lengths_q = keep(integers(DType::i64, lengths_));
      break;
    }
    case Boundaries::padding_mask: spec_.padding_mask_q = keep(padding_mask(lengths_)); break;
    case Boundaries::position_ids: spec_.position_ids = keep(position_ids(lengths_)); break;
    case Boundaries::capacity:
      spec_.capacity = true;
      tokens_ += spare_rows;
      [[fallthrough]];
    default: spec_.cu_seqlens_q = keep(integers(DType::i32, running_ends(lengths_)));
  }
  batch_.emplace(spec_);
}

void KdaPlacement::place_tokens(const KdaData& data) {
  const KdaCase& c = shape_;
  const auto rows = c.rows ? static_cast<std::int64_t>(lengths_.size()) : 1;
  const std::int64_t t = rows == 0 ? 0 : tokens_ / rows;
  q_ = Guarded(c.dtype, {rows, t, c.heads, c.key_dim}, c.form);
  k_ = Guarded(c.dtype, {rows, t, c.heads, c.key_dim}, c.form);
  v_ = Guarded(c.dtype, {rows, t, c.value_heads, c.value_dim}, c.form);
  out_ = Guarded(c.out_type(), {rows, t, c.value_heads, c.value_dim}, c.form);
  g_ = c.gate_per_head ? Guarded(c.gate_dtype, {rows, t, c.value_heads}, c.form)
                       : Guarded(c.gate_dtype, {rows, t, c.value_heads, c.key_dim}, c.form);
  beta_ = c.beta_per_channel ? Guarded(c.beta_dtype, {rows, t, c.value_heads, c.value_dim}, c.form)
                             : Guarded(c.beta_dtype, {rows, t, c.value_heads}, c.form);
  for (std::size_t n = 0; n < data.sequences.size(); ++n) {
    const KdaSequence& s = data.sequences[n];
    const std::int64_t start = starts_[n];
    q_.fill(s.q, start * c.heads * c.key_dim);
    k_.fill(s.k, start * c.heads * c.key_dim);
    v_.fill(s.v, start * c.value_heads * c.value_dim);
    g_.fill(s.g, start * c.value_heads * (c.gate_per_head ? 1 : c.key_dim));
    beta_.fill(s.beta, start * c.value_heads * (c.beta_per_channel ? c.value_dim : 1));
  }
  if (!data.A_log.empty()) {
    A_log_ = Guarded(DType::f32, {c.value_heads});
    A_log_.fill(data.A_log);
  }
  if (!data.dt_bias.empty()) {
    dt_bias_ = c.bias == Bias::flat ? Guarded(DType::f32, {c.value_heads * c.key_dim})
                                    : Guarded(DType::f32, {c.value_heads, c.key_dim}, c.form);
    dt_bias_.fill(data.dt_bias);
  }
}

void KdaPlacement::place_state(const KdaData& data) {
  const KdaCase& c = shape_;
  const auto count = static_cast<std::int64_t>(lengths_.size());
  if (c.chunk_states) {
    std::int64_t total = 0;
    for (const std::int64_t length : lengths_) total += chunks(length);
    chunk_states_ = Guarded(DType::f32, pool_shape(c, total), c.form);
  }
  if (c.state == KdaState::none) return;
  const std::int64_t columns =
      1 + (lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end()));
  const std::int64_t rows = c.slots == KdaSlots::none      ? count
                            : c.slots == KdaSlots::columns ? count * columns + 3
                                                           : 2 * count + 3;
  Random random(seed_of(c.name));
  const auto order = random.permutation(rows);
  std::vector<std::int64_t> accepted;
  for (std::int64_t n = 0; n < count; ++n) {
    const auto i = static_cast<std::size_t>(n);
    const std::int64_t own = c.slots == KdaSlots::none ? n : order[i];
    read_rows_.push_back(own);
    write_rows_.push_back(c.slots == KdaSlots::split ? order[i + lengths_.size()] : own);
    if (c.skipped(i)) read_rows_.back() = write_rows_.back() = c.options.null_slot;
    if (c.slots != KdaSlots::columns) continue;
    std::vector<std::int64_t> slots(order.begin() + n * columns, order.begin() + (n + 1) * columns);
    accepted.push_back(random.between(1, columns));
    if (c.skipped(i)) std::fill(slots.begin(), slots.end(), c.options.null_slot);
    read_rows_.back() = slots[static_cast<std::size_t>(accepted.back() - 1)];
    write_rows_.back() = -1;
    column_rows_.push_back(std::move(slots));
  }
  if (c.slots == KdaSlots::shared) slots_ = integers(DType::i32, write_rows_);
  if (c.slots == KdaSlots::split) {
    read_slots_ = integers(DType::i64, read_rows_);
    write_slots_ = integers(DType::i32, write_rows_);
  }
  if (c.slots == KdaSlots::columns) {
    slots_ = Guarded(DType::i32, {count, columns}, c.form);
    for (std::int64_t i = 0; i < count * columns; ++i) {
      slots_.set(i, static_cast<double>(column_rows_[static_cast<std::size_t>(i / columns)]
                                                    [static_cast<std::size_t>(i % columns)]));
    }
    accepted_ = integers(DType::i32, accepted);
  }
  Guarded pool(c.state_dtype, pool_shape(c, rows), c.form);
  for (std::size_t n = 0; n < lengths_.size(); ++n) {
    if (c.reads_state() && !c.skipped(n)) put_state(pool, read_rows_[n], data.sequences[n].initial);
  }
  (c.state == KdaState::in_place ? state_ : initial_) = std::move(pool);
  if (c.state == KdaState::final_only) initial_ = Guarded();
  if (c.writes_state() && c.state != KdaState::in_place) {
    final_ = Guarded(c.state_dtype, pool_shape(c, rows), c.form);
  }
}

std::int64_t KdaPlacement::chunks(std::int64_t length) const {
  const std::int64_t size = shape_.options.chunk_size;
  return (length + size - 1) / size;
}

void KdaPlacement::put_state(Guarded& pool, std::int64_t row,
                             const std::vector<float>& state) const {
  const std::int64_t k = shape_.key_dim;
  const std::int64_t v = shape_.value_dim;
  const std::int64_t size = shape_.value_heads * k * v;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t head = i / (k * v);
    const std::int64_t d = i / v % k;
    const std::int64_t c = i % v;
    const std::int64_t at = k_first(shape_) ? i : (head * v + c) * k + d;
    pool.set(row * size + at, state[static_cast<std::size_t>(i)]);
  }
}

std::vector<float> KdaPlacement::take_state(const Guarded& pool, std::int64_t row) const {
  const std::int64_t k = shape_.key_dim;
  const std::int64_t v = shape_.value_dim;
  const std::int64_t size = shape_.value_heads * k * v;
  std::vector<float> state = pool.values(row * size, size);
  if (k_first(shape_)) return state;
  const std::vector<float> stored = state;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t at = (i / (k * v) * v + i % v) * k + i / v % k;
    state[static_cast<std::size_t>(i)] = stored[static_cast<std::size_t>(at)];
  }
  return state;
}

namespace {

/// Arguments whose views are `view` of these tensors, in the order of KdaArgs.
template <class Tensor, class View>
KdaArgs views_of(const std::array<Tensor*, 16>& t, View&& view) {
  const auto at = [&](std::size_t i) { return view(*t[i]); };
  return {.q = at(0),
          .k = at(1),
          .v = at(2),
          .g = at(3),
          .beta = at(4),
          .out = at(5),
          .A_log = at(6),
          .dt_bias = at(7),
          .state = at(8),
          .initial_state = at(9),
          .final_state = at(10),
          .slots = at(11),
          .read_slots = at(12),
          .write_slots = at(13),
          .num_accepted_tokens = at(14),
          .chunk_states = at(15)};
}

}  // namespace

std::array<Guarded*, 16> KdaPlacement::tensors() {
  return {&q_,          &k_,           &v_,        &g_,           &beta_,  &out_,
          &A_log_,      &dt_bias_,     &state_,    &initial_,     &final_, &slots_,
          &read_slots_, &write_slots_, &accepted_, &chunk_states_};
}

KdaArgs KdaPlacement::args() const {
  const auto all = const_cast<KdaPlacement*>(this)->tensors();
  return views_of(all, [](const Guarded& t) { return t.view(); });
}

KdaArgs KdaPlacement::send() {
  return views_of(tensors(), [](Guarded& t) { return t.send(); });
}

void KdaPlacement::fetch() {
  for (Guarded* tensor : tensors()) tensor->fetch();
}

/// Said to be on a device if the implementation runs there: for checks alone.
KdaArgs KdaPlacement::args_for(const std::string& implementation) const {
  if (!runs_on_device(implementation)) return args();
  const auto all = const_cast<KdaPlacement*>(this)->tensors();
  return views_of(all, [](const Guarded& t) { return t.view_as_if_on_device(); });
}

std::optional<Fault> KdaPlacement::declined(Op op, const std::string& implementation) const {
  for (const Verdict& verdict : why_kda(op, args_for(implementation), batch(), options())) {
    if (verdict.implementation == implementation) return verdict.declined;
  }
  ADD_FAILURE() << shape_.name << ": why_kda does not mention " << implementation;
  return {};
}

void KdaPlacement::poison_outputs() {
  for (Guarded* output : {&out_, &final_, &chunk_states_}) {
    if (output->present()) output->poison();
  }
  final_.freeze();
  state_.restore();
}

namespace {

void call(Op op, const KdaArgs& args, const PackedBatch* batch, const KdaOptions& options,
          const Context& context) {
  if (op == Op::kda_recurrent) {
    batch != nullptr ? kda_recurrent(args, *batch, options, context)
                     : kda_recurrent(args, options, context);
  } else {
    batch != nullptr ? kda_chunk(args, *batch, options, context)
                     : kda_chunk(args, options, context);
  }
}

}  // namespace

std::vector<KdaResult> KdaPlacement::run(Op op, const Context& context) {
  poison_outputs();
  if (runs_on_device(context.implementation) && !declined(op, context.implementation)) {
    return run_on_device(op, context);
  }
  // A declined one refuses these.
  call(op, args_for(context.implementation), batch(), options(), context);
  check_memory();
  check_rows();
  return collect();
}

/// The boundaries where the host does not see them, if their form can be on a device.
std::optional<PackedBatch> KdaPlacement::batch_on_device() {
  if (!spec_.cu_seqlens_q.present()) return {};
  BatchSpec there = spec_;
  there.cu_seqlens_q = boundaries_[0].send();
  return PackedBatch(there);
}

std::size_t KdaPlacement::device_workspace_bytes(Op op, const Context& context) {
  const KdaArgs there = send();
  std::size_t bytes = kda_workspace_bytes(op, there, batch(), options(), context);
  if (const auto on_device = batch_on_device()) {
    bytes = std::max(bytes, kda_workspace_bytes(op, there, &*on_device, options(), context));
  }
  return bytes;
}

/// With boundaries that the host knows, and again, where their form allows it, with boundaries that
/// only the device has: the planner has to come to the same bits.
std::vector<KdaResult> KdaPlacement::run_on_device(Op op, const Context& context) {
  const auto run_with = [&](const PackedBatch* boundaries) {
    call(op, send(), boundaries, options(), context);
    fetch();
    check_memory();
    check_rows();
    return collect();
  };
  auto results = run_with(batch());
  const auto on_device = batch_on_device();
  if (!on_device) return results;
  poison_outputs();
  const auto planned = run_with(&*on_device);
  for (std::size_t n = 0; n < results.size(); ++n) {
    const auto same = [&](const std::vector<float>& a, const std::vector<float>& b) {
      EXPECT_TRUE(same_bits(a, b, {static_cast<std::int64_t>(b.size())}))
          << shape_.name << ", planned on the device, sequence " << n;
    };
    same(planned[n].out, results[n].out);
    same(planned[n].final, results[n].final);
    for (std::size_t i = 0; i < results[n].columns.size(); ++i) {
      same(planned[n].columns[i], results[n].columns[i]);
    }
    for (std::size_t i = 0; i < results[n].chunk_states.size(); ++i) {
      same(planned[n].chunk_states[i], results[n].chunk_states[i]);
    }
  }
  return results;
}

void KdaPlacement::check_memory() const {
  for (const Guarded* input : {&q_, &k_, &v_, &g_, &beta_, &A_log_, &dt_bias_, &initial_, &slots_,
                               &read_slots_, &write_slots_, &accepted_}) {
    EXPECT_TRUE(input->unchanged()) << shape_.name << ": an input was written to";
  }
  for (const Guarded& tensor : boundaries_) EXPECT_TRUE(tensor.unchanged()) << shape_.name;
  EXPECT_EQ(out_.damaged(), 0) << shape_.name << ": bytes around out were written";
  EXPECT_EQ(state_.damaged(), 0) << shape_.name << ": bytes around state were written";
  EXPECT_EQ(final_.damaged(), 0) << shape_.name << ": bytes around final_state were written";
  EXPECT_EQ(chunk_states_.damaged(), 0) << shape_.name;
  EXPECT_EQ(chunk_states_.unwritten(), 0) << shape_.name << ": chunk_states left unwritten";

  // Pool rows that no sequence writes keep every bit.
  if (!written_pool().present()) return;
  std::set<std::int64_t> written(write_rows_.begin(), write_rows_.end());
  for (std::size_t n = 0; n < column_rows_.size(); ++n) {
    written.insert(column_rows_[n].begin(), column_rows_[n].begin() + lengths_[n]);
  }
  const std::int64_t size = shape_.value_heads * shape_.key_dim * shape_.value_dim;
  const std::int64_t rows = written_pool().shape()[0];
  for (std::int64_t row = 0; row < rows; ++row) {
    if (written.contains(row)) continue;
    EXPECT_TRUE(written_pool().unchanged(row * size, size))
        << shape_.name << ": slot " << row << " belongs to no sequence and was written to";
  }
}

void KdaPlacement::check_rows() const {
  const std::int64_t width = shape_.value_heads * shape_.value_dim;
  std::vector<bool> owned(static_cast<std::size_t>(tokens_), false);
  std::vector<bool> zero(static_cast<std::size_t>(tokens_),
                         shape_.boundaries == Boundaries::capacity);
  for (std::size_t n = 0; n < lengths_.size(); ++n) {
    std::fill_n(owned.begin() + starts_[n], lengths_[n], true);
    std::fill_n(zero.begin() + starts_[n], lengths_[n], shape_.skipped(n));
  }
  for (std::int64_t row = 0; row < tokens_; ++row) {
    const bool mine = owned[static_cast<std::size_t>(row)];
    const bool is_zero = zero[static_cast<std::size_t>(row)];
    const std::int64_t unwritten = out_.unwritten(row * width, width);
    std::int64_t wrong = mine ? unwritten : width - unwritten;
    if (is_zero) {
      const auto values = out_.values(row * width, width);
      wrong = width - std::count(values.begin(), values.end(), 0.0F);
    }
    EXPECT_EQ(wrong, 0) << shape_.name << ": row " << row
                        << (is_zero ? " has to be 0"
                            : mine  ? " was left unwritten"
                                    : " lies in a gap and was written to");
  }
}

std::vector<KdaResult> KdaPlacement::collect() const {
  std::vector<KdaResult> results;
  const std::int64_t width = shape_.value_heads * shape_.value_dim;
  std::int64_t chunk = 0;
  for (std::size_t n = 0; n < lengths_.size(); ++n) {
    KdaResult r;
    r.out = out_.values(starts_[n] * width, lengths_[n] * width);
    const bool stored = shape_.writes_state() && !shape_.skipped(n);
    if (stored && column_rows_.empty()) r.final = take_state(written_pool(), write_rows_[n]);
    for (std::int64_t t = 0; stored && !column_rows_.empty() && t < lengths_[n]; ++t) {
      r.columns.push_back(take_state(written_pool(), column_rows_[n][static_cast<std::size_t>(t)]));
    }
    for (std::int64_t i = 0; shape_.chunk_states && i < chunks(lengths_[n]); ++i) {
      r.chunk_states.push_back(take_state(chunk_states_, chunk++));
    }
    results.push_back(std::move(r));
  }
  return results;
}

}  // namespace packattn::test
