// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/boundaries.h"
#include "support/layer_data.h"
#include "support/random.h"

namespace packattn::test {
namespace {

constexpr std::int64_t spare_rows = 7;

}  // namespace

LayerPlacement::LayerPlacement(const LayerData& data) : shape_(data.shape), eps_(data.eps()) {
  for (const LayerSequence& s : data.sequences) lengths_.push_back(s.t);
  starts_ = running_ends(lengths_);
  tokens_ = starts_.back();
  boundaries_.reserve(2);
  const auto keep = [&](Guarded tensor) {
    boundaries_.push_back(std::move(tensor));
    return boundaries_.back().view();
  };
  if (shape_.boundaries == Boundaries::starts) {
    const Gaps gaps = with_gaps(lengths_, seed_of(shape_.name));
    starts_ = gaps.starts;
    tokens_ = gaps.rows;
    spec_.starts_q = keep(integers(DType::i64, starts_));
    spec_.lengths_q = keep(integers(DType::i32, lengths_));
  } else if (shape_.boundaries == Boundaries::lengths) {
    spec_.lengths_q = keep(integers(DType::i64, lengths_));
  } else {
    spec_.capacity = shape_.boundaries == Boundaries::capacity;
    if (spec_.capacity) tokens_ += spare_rows;
    spec_.cu_seqlens_q = keep(integers(DType::i32, running_ends(lengths_)));
  }
  batch_.emplace(spec_);
  place_rows(data);
  place_state(data);
  for (Guarded* tensor : {&x_, &gate_, &residual_, &weight_, &bias_, &A_log_, &dt_bias_, &state_,
                          &initial_, &slots_}) {
    tensor->freeze();
  }
}

void LayerPlacement::place_rows(const LayerData& data) {
  const LayerCase& c = shape_;
  const auto rows = [&](DType dtype) {
    return c.op == Op::kda_gate ? Guarded(dtype, {1, tokens_, c.heads, c.width}, c.form)
                                : Guarded(dtype, {tokens_, c.row()}, c.form);
  };
  x_ = rows(c.dtype);
  out_ = rows(c.out_type());
  if (c.gate) gate_ = rows(c.side_dtype);
  if (c.residual) residual_ = rows(c.side_dtype);
  if (c.residual_out) residual_out_ = rows(c.side_dtype);
  for (std::size_t n = 0; n < data.sequences.size(); ++n) {
    const LayerSequence& s = data.sequences[n];
    x_.fill(s.x, starts_[n] * c.row());
    if (c.gate) gate_.fill(s.gate, starts_[n] * c.row());
    if (c.residual) residual_.fill(s.residual, starts_[n] * c.row());
  }
  const auto place = [](Guarded& to, DType dtype, std::vector<std::int64_t> sizes, Form form,
                        const std::vector<float>& values) {
    if (values.empty()) return;
    to = Guarded(dtype, std::move(sizes), form);
    to.fill(values);
  };
  place(weight_, c.side_dtype, c.convolves() ? std::vector{c.row(), c.taps} : std::vector{c.row()},
        c.form, data.weight);
  place(bias_, c.side_dtype, {c.row()}, Form::contiguous, data.bias);
  place(A_log_, DType::f32, {c.heads}, Form::contiguous, data.A_log);
  place(dt_bias_, DType::f32,
        c.dt_bias == Bias::flat ? std::vector{c.row()} : std::vector{c.heads, c.width}, c.form,
        data.dt_bias);
}

void LayerPlacement::place_state(const LayerData& data) {
  const LayerCase& c = shape_;
  if (c.state == KdaState::none) return;
  const auto count = static_cast<std::int64_t>(lengths_.size());
  const std::int64_t rows = c.slots ? count + 3 : count, size = c.row() * (c.taps - 1);
  const auto order = Random(seed_of(c.name)).permutation(rows);
  Guarded pool(c.side_dtype, {rows, c.row(), c.taps - 1}, c.form);
  for (std::size_t n = 0; n < lengths_.size(); ++n) {
    pool_rows_.push_back(c.skipped(n) ? -1 : c.slots ? order[n] : static_cast<std::int64_t>(n));
    if (c.reads_state() && !c.skipped(n)) {
      pool.fill(data.sequences[n].initial, pool_rows_[n] * size);
    }
  }
  if (c.slots) slots_ = integers(DType::i64, pool_rows_);
  if (c.state == KdaState::in_place) {
    state_ = std::move(pool);
    return;
  }
  if (c.writes_state()) {
    final_ = Guarded(c.side_dtype, {rows, c.row(), c.taps - 1}, c.form);
    final_.freeze();
  }
  if (c.reads_state()) initial_ = std::move(pool);
}

KdaGateArgs LayerPlacement::gate_args() const {
  return {x_.view(true), A_log_.view(true), dt_bias_.view(true), out_.view()};
}
GatedRmsNormArgs LayerPlacement::rms_norm_args() const {
  return {.x = x_.view(true),
          .gate = gate_.view(true),
          .weight = weight_.view(true),
          .bias = bias_.view(true),
          .residual = residual_.view(true),
          .out = out_.view(),
          .residual_out = residual_out_.view()};
}
ShortConvolutionArgs LayerPlacement::convolution_args() const {
  return {.x = x_.view(true),
          .weight = weight_.view(true),
          .bias = bias_.view(true),
          .out = out_.view(),
          .state = state_.view(),
          .initial_state = initial_.view(true),
          .final_state = final_.view(),
          .slots = slots_.view(true)};
}

std::vector<Verdict> LayerPlacement::why() const {
  switch (shape_.op) {
    case Op::kda_gate:
      return why_kda_gate(gate_args(), {.gate = shape_.gate_kind, .lower_bound = -3});
    case Op::l2norm: return why_l2norm({x_.view(true), out_.view()}, {eps_});
    case Op::short_convolution:
      return why_short_convolution(convolution_args(), *batch_, {.silu = shape_.silu});
    default: return why_gated_rms_norm(rms_norm_args(), {eps_, shape_.activation});
  }
}

void LayerPlacement::invoke(const Context& context) const {
  switch (shape_.op) {
    case Op::kda_gate:
      return kda_gate(gate_args(), {.gate = shape_.gate_kind, .lower_bound = -3}, context);
    case Op::l2norm: return l2norm({x_.view(true), out_.view()}, {eps_}, context);
    case Op::short_convolution:
      return short_convolution(convolution_args(), *batch_, {.silu = shape_.silu}, context);
    default: return gated_rms_norm(rms_norm_args(), {eps_, shape_.activation}, context);
  }
}

std::optional<Fault> LayerPlacement::declined(const std::string& implementation) const {
  for (const Verdict& v : why()) {
    if (v.implementation == implementation) return v.declined;
  }
  ADD_FAILURE() << implementation << " is not on the list";
  return {};
}

std::vector<LayerResult> LayerPlacement::run(const Context& context) {
  out_.poison();
  if (residual_out_.present()) residual_out_.poison();
  if (final_.present()) final_.poison();
  if (state_.present()) state_.restore();
  invoke(context);
  check_memory();
  return collect();
}

void LayerPlacement::check_memory() const {
  for (const Guarded* t :
       {&x_, &gate_, &residual_, &weight_, &bias_, &A_log_, &dt_bias_, &initial_, &slots_}) {
    if (t->present()) {
      EXPECT_TRUE(t->unchanged()) << "an input was changed";
    }
  }
  for (const Guarded* t : {&out_, &residual_out_, &state_, &final_}) {
    if (t->present()) {
      EXPECT_EQ(t->damaged(), 0) << "bytes around an output were written";
    }
  }
  std::vector<bool> owned(static_cast<std::size_t>(tokens_), false);
  for (std::size_t n = 0; n < lengths_.size(); ++n) {
    for (std::int64_t t = starts_[n]; t < starts_[n] + lengths_[n]; ++t) {
      owned[static_cast<std::size_t>(t)] = true;
    }
  }
  const std::int64_t row = shape_.row();
  for (std::int64_t t = 0; shape_.convolves() && t < tokens_; ++t) {
    if (owned[static_cast<std::size_t>(t)]) continue;
    for (std::int64_t d = t * row; d < (t + 1) * row; ++d) {
      // Gaps belong to others; a spare tail is 0.
      const bool right = spec_.capacity ? out_.get(d) == 0 : out_.is_poison(d);
      ASSERT_TRUE(right) << "row " << t << " of no sequence";
    }
  }
  if (!slots_.present() || !written_pool().present()) return;
  const Guarded& pool = written_pool();
  const std::int64_t size = row * (shape_.taps - 1);
  for (std::int64_t slot = 0; slot < pool.shape()[0]; ++slot) {
    if (std::ranges::find(pool_rows_, slot) != pool_rows_.end()) continue;
    EXPECT_TRUE(pool.unchanged(slot * size, size)) << "slot " << slot << " is nobody's";
  }
}

std::vector<LayerResult> LayerPlacement::collect() const {
  std::vector<LayerResult> results;
  const std::int64_t row = shape_.row(), size = row * (shape_.taps - 1);
  for (std::size_t n = 0; n < lengths_.size(); ++n) {
    LayerResult r{.out = out_.values(starts_[n] * row, lengths_[n] * row)};
    if (shape_.convolves() && shape_.skipped(n)) {
      EXPECT_TRUE(std::ranges::all_of(r.out, [](float x) { return x == 0; })) << n;
    }
    if (residual_out_.present())
      r.residual = residual_out_.values(starts_[n] * row, lengths_[n] * row);
    if (shape_.writes_state() && pool_rows_[n] >= 0) {
      r.final = written_pool().values(pool_rows_[n] * size, size);
    }
    results.push_back(std::move(r));
  }
  return results;
}

}  // namespace packattn::test
