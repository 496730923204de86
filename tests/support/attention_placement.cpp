// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "support/attention_data.h"
#include "support/boundaries.h"
#include "support/compare.h"
#include "support/random.h"

namespace packattn::test {
namespace {

constexpr std::int64_t spare_rows = 7;

std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& lengths) {
  auto ends = running_ends(lengths);
  ends.pop_back();
  return ends;
}

std::int64_t sum(const std::vector<std::int64_t>& lengths) { return running_ends(lengths).back(); }

}  // namespace

AttentionPlacement::AttentionPlacement(const AttentionData& data) : shape_(data.shape) {
  const AttentionCase& c = shape_;
  place_boundaries(data);
  q_ = Guarded(c.dtype, {rows_q_, c.heads_q, c.head_dim}, c.form);
  out_ = Guarded(c.out_type(), {rows_q_, c.heads_q, c.dv()}, c.form);
  if (c.lse) lse_ = Guarded(DType::f32, {c.heads_q, rows_q_}, c.form);
  if (c.boundaries == Boundaries::paged) {
    place_pages(data);
  } else {
    k_ = Guarded(c.dtype, {rows_k_, c.heads_k, c.head_dim}, c.form);
    v_ = Guarded(c.dtype, {rows_k_, c.heads_k, c.dv()}, c.form);
  }
  for (std::size_t n = 0; n < data.sequences.size(); ++n) {
    const AttentionSequence& s = data.sequences[n];
    q_.fill(s.q, q_starts_[n] * c.heads_q * c.head_dim);
    if (c.boundaries == Boundaries::paged) continue;
    k_.fill(s.k, k_starts_[n] * c.heads_k * c.head_dim);
    v_.fill(s.v, k_starts_[n] * c.heads_k * c.dv());
  }
  if (c.slopes == Slopes::per_head) {
    slopes_ = Guarded(DType::f32, {c.heads_q});
    slopes_.fill(data.slopes);
  } else if (c.slopes == Slopes::per_sequence) {
    slopes_ = Guarded(DType::f32, {batch_->size(), c.heads_q}, c.form);
    for (std::size_t n = 0; n < data.sequences.size(); ++n) {
      slopes_.fill(data.sequences[n].slopes, static_cast<std::int64_t>(n) * c.heads_q);
    }
  }
  if (c.sinks) {
    sinks_ = Guarded(DType::f32, {c.heads_q});
    sinks_.fill(data.sinks);
  }
  for (Guarded* input : {&q_, &k_, &v_, &slopes_, &sinks_}) input->freeze();
  for (Guarded& input : boundaries_) input.freeze();
}

void AttentionPlacement::place_boundaries(const AttentionData& data) {
  std::vector<std::int64_t> q;
  std::vector<std::int64_t> k;
  for (const AttentionSequence& s : data.sequences) {
    q.push_back(s.lq);
    k.push_back(s.lk);
  }
  q_starts_ = starts_of(q);
  k_starts_ = starts_of(k);
  rows_q_ = sum(q);
  rows_k_ = sum(k);
  const bool shared = shape_.lengths_k.empty() && q == k;
  boundaries_.reserve(4);
  const auto keep = [&](Guarded tensor) {
    boundaries_.push_back(std::move(tensor));
    return boundaries_.back().view();
  };
  const auto cu = [&](DType q_type, DType k_type) {
    spec_.cu_seqlens_q = keep(integers(q_type, running_ends(q)));
    if (!shared) spec_.cu_seqlens_k = keep(integers(k_type, running_ends(k)));
  };
  switch (shape_.boundaries) {
    case Boundaries::cu_int32: cu(DType::i32, DType::i32); break;
    case Boundaries::cu_int64: cu(DType::i64, DType::i64); break;
    case Boundaries::cu_mixed: cu(DType::i32, DType::i64); break;
    case Boundaries::cu_strided:
      keep(strided_integers(DType::i32, running_ends(q)));
      spec_.cu_seqlens_q = strided_view(boundaries_.back());
      if (shared) break;
      keep(strided_integers(DType::i64, running_ends(k)));
      spec_.cu_seqlens_k = strided_view(boundaries_.back());
      break;
    case Boundaries::host_copies:
      cu(DType::i32, DType::i32);
      spec_.host_q = keep(integers(DType::i64, running_ends(q)));
      if (!shared) spec_.host_k = keep(integers(DType::i32, running_ends(k)));
      break;
    case Boundaries::lengths:
      spec_.lengths_q = keep(integers(DType::i32, q));
      if (!shared) spec_.lengths_k = keep(integers(DType::i64, k));
      break;
    case Boundaries::starts: {
      const Gaps gaps_q = with_gaps(q, seed_of(shape_.name));
      const Gaps gaps_k = shared ? gaps_q : with_gaps(k, seed_of(shape_.name) + 1);
      q_starts_ = gaps_q.starts;
      k_starts_ = gaps_k.starts;
      rows_q_ = gaps_q.rows;
      rows_k_ = gaps_k.rows;
      spec_.starts_q = keep(integers(DType::i64, q_starts_));
      spec_.lengths_q = keep(integers(DType::i32, q));
      if (shared) break;
      spec_.starts_k = keep(integers(DType::i32, k_starts_));
      spec_.lengths_k = keep(integers(DType::i64, k));
      break;
    }
    case Boundaries::capacity:
      cu(DType::i32, DType::i32);
      spec_.capacity = true;
      rows_q_ += spare_rows;
      rows_k_ += shared ? spare_rows : 2 * spare_rows;
      break;
    case Boundaries::padding_mask:
      spec_.padding_mask_q = keep(padding_mask(q));
      if (!shared) spec_.padding_mask_k = keep(padding_mask(k));
      break;
    case Boundaries::position_ids: spec_.position_ids = keep(position_ids(q)); break;
    case Boundaries::paged: return;  // place_pages makes the batch
  }
  batch_.emplace(spec_);
}

void AttentionPlacement::place_pages(const AttentionData& data) {
  const AttentionCase& c = shape_;
  std::vector<std::int64_t> q;
  std::vector<std::int64_t> k;
  std::int64_t used = 0;
  std::int64_t most = 1;
  for (const AttentionSequence& s : data.sequences) {
    q.push_back(s.lq);
    k.push_back(s.lk);
    const std::int64_t pages = (s.lk + c.page_size - 1) / c.page_size;
    used += pages;
    most = std::max(most, pages);
  }
  const std::int64_t pages = used + 3;  // some that nobody uses
  Random random(seed_of(c.name));
  const auto order = random.permutation(pages);
  k_ = Guarded(c.dtype, {pages, c.page_size, c.heads_k, c.head_dim}, c.form);
  v_ = Guarded(c.dtype, {pages, c.page_size, c.heads_k, c.dv()}, c.form);
  // Entries past the last key stay -1 (the poison): nobody may follow them.
  Guarded table(DType::i32, {static_cast<std::int64_t>(data.sequences.size()), most + 1});
  std::size_t next = 0;
  for (std::size_t n = 0; n < data.sequences.size(); ++n) {
    const AttentionSequence& s = data.sequences[n];
    for (std::int64_t first = 0; first < s.lk; first += c.page_size) {
      const std::int64_t page = order[next++];
      const std::int64_t end = std::min(s.lk, first + c.page_size);
      const AttentionSequence part = data.cut(n, 0, 0, first, end);
      table.set(static_cast<std::int64_t>(n) * (most + 1) + first / c.page_size,
                static_cast<double>(page));
      k_.fill(part.k, page * c.page_size * c.heads_k * c.head_dim);
      v_.fill(part.v, page * c.page_size * c.heads_k * c.dv());
    }
  }
  boundaries_.push_back(integers(DType::i32, running_ends(q)));
  spec_.cu_seqlens_q = boundaries_.back().view();
  boundaries_.push_back(integers(DType::i32, k));
  spec_.seqlens_k = boundaries_.back().view();
  boundaries_.push_back(std::move(table));
  spec_.block_table = boundaries_.back().view();
  batch_.emplace(spec_);
}

AttentionArgs AttentionPlacement::args() const {
  return {.q = q_.view(), .k = k_.view(), .v = v_.view(), .out = out_.view(), .lse = lse_.view()};
}

AttentionOptions AttentionPlacement::options() const {
  return {.softmax_scale = shape_.scale,
          .causal = shape_.causal,
          .align = shape_.align,
          .window = shape_.window,
          .softcap = shape_.softcap,
          .alibi_slopes = slopes_.view(),
          .sinks = sinks_.view()};
}

AttentionArgs AttentionPlacement::args_for(const std::string& implementation,
                                           AttentionOptions& options) const {
  if (!runs_on_device(implementation)) return args();
  options.alibi_slopes = slopes_.view_as_if_on_device();
  options.sinks = sinks_.view_as_if_on_device();
  return {.q = q_.view_as_if_on_device(),
          .k = k_.view_as_if_on_device(),
          .v = v_.view_as_if_on_device(),
          .out = out_.view_as_if_on_device(),
          .lse = lse_.view_as_if_on_device()};
}

std::optional<Fault> AttentionPlacement::declined(const std::string& implementation) const {
  AttentionOptions o = options();
  const AttentionArgs a = args_for(implementation, o);
  for (const Verdict& verdict : why_attention(a, *batch_, o)) {
    if (verdict.implementation == implementation) return verdict.declined;
  }
  ADD_FAILURE() << shape_.name << ": why_attention does not mention " << implementation;
  return {};
}

std::vector<AttentionResult> AttentionPlacement::run(const Context& context) {
  out_.poison();
  if (lse_.present()) lse_.poison();
  if (runs_on_device(context.implementation) && !declined(context.implementation)) {
    return run_on_device(context);
  }
  AttentionOptions o = options();
  const AttentionArgs a = args_for(context.implementation, o);  // a declined one refuses these
  attention(a, *batch_, o, context);
  check_memory();
  return collect();
}

namespace {

/// A view of `tensor`, which may be strided, where its bytes are on the device.
TensorView moved(const TensorView& view, Guarded& tensor) {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  for (int dim = 0; dim < view.rank(); ++dim) {
    shape.push_back(view.size(dim));
    strides.push_back(view.stride(dim));
  }
  const TensorView there = tensor.send();
  return {there.data(), view.dtype(), there.device(), shape, strides};
}

}  // namespace

/// With boundaries that the host knows, and again, where their form allows it, with boundaries that
/// only the device has: the planner has to come to the same bits.
std::vector<AttentionResult> AttentionPlacement::run_on_device(const Context& context) {
  const std::array<Guarded*, 7> tensors{&q_, &k_, &v_, &out_, &lse_, &slopes_, &sinks_};
  AttentionOptions o = options();
  const auto send = [&] {
    o.alibi_slopes = slopes_.send();
    o.sinks = sinks_.send();
    return AttentionArgs{
        .q = q_.send(), .k = k_.send(), .v = v_.send(), .out = out_.send(), .lse = lse_.send()};
  };
  const auto fetch = [&] {
    for (Guarded* tensor : tensors) tensor->fetch();
    check_memory();
    return collect();
  };
  attention(send(), *batch_, o, context);
  auto results = fetch();
  if (!spec_.cu_seqlens_q.present() || spec_.host_q.present() || spec_.lengths_q.present()) {
    return results;
  }
  BatchSpec there = spec_;
  for (std::size_t i = 0; i < boundaries_.size(); ++i) {
    const TensorView here = boundaries_[i].view();
    for (TensorView* view :
         {&there.cu_seqlens_q, &there.cu_seqlens_k, &there.seqlens_k, &there.block_table}) {
      if (view->present() && view->data() == here.data()) *view = moved(*view, boundaries_[i]);
    }
  }
  out_.poison();
  if (lse_.present()) lse_.poison();
  attention(send(), PackedBatch(there), o, context);
  const auto planned = fetch();
  for (std::size_t n = 0; n < results.size(); ++n) {
    const auto count = static_cast<std::int64_t>(results[n].out.size());
    EXPECT_TRUE(same_bits(planned[n].out, results[n].out, std::vector{count}))
        << shape_.name << ", " << n;
    const auto rows = static_cast<std::int64_t>(results[n].lse.size());
    EXPECT_TRUE(same_bits(planned[n].lse, results[n].lse, std::vector{rows}))
        << shape_.name << ", " << n;
  }
  return results;
}

void AttentionPlacement::check_memory() {
  EXPECT_TRUE(q_.unchanged()) << shape_.name << ": q was written to";
  EXPECT_TRUE(k_.unchanged()) << shape_.name << ": k was written to";
  EXPECT_TRUE(v_.unchanged()) << shape_.name << ": v was written to";
  EXPECT_TRUE(slopes_.unchanged() && sinks_.unchanged()) << shape_.name;
  for (const Guarded& tensor : boundaries_) EXPECT_TRUE(tensor.unchanged()) << shape_.name;
  EXPECT_EQ(out_.damaged(), 0) << shape_.name << ": bytes around out were written";
  EXPECT_EQ(lse_.damaged(), 0) << shape_.name << ": bytes around lse were written";

  std::vector<bool> owned(static_cast<std::size_t>(rows_q_), false);
  for (std::size_t n = 0; n < q_starts_.size(); ++n) {
    const std::int64_t length = batch_->sequences()[n].q_length;
    std::fill_n(owned.begin() + q_starts_[n], length, true);
  }
  const std::int64_t width = shape_.heads_q * shape_.dv();
  for (std::int64_t row = 0; row < rows_q_; ++row) {
    const bool mine = owned[static_cast<std::size_t>(row)];
    const bool zero = !mine && shape_.boundaries == Boundaries::capacity;
    const std::int64_t unwritten = out_.unwritten(row * width, width);
    std::int64_t wrong = mine ? unwritten : width - unwritten;
    if (zero) {
      const auto values = out_.values(row * width, width);
      wrong = width - std::count(values.begin(), values.end(), 0.0F);
    }
    for (std::int64_t h = 0; h < (shape_.lse ? shape_.heads_q : 0); ++h) {
      const std::int64_t i = h * rows_q_ + row;
      wrong += zero ? lse_.get(i) != -std::numeric_limits<double>::infinity()
                    : lse_.is_poison(i) == mine;
    }
    EXPECT_EQ(wrong, 0) << shape_.name << ": row " << row
                        << (mine   ? " was left unwritten"
                            : zero ? " belongs to no sequence and is not 0 and -inf"
                                   : " lies in a gap and was written to");
  }
}

std::vector<AttentionResult> AttentionPlacement::collect() const {
  std::vector<AttentionResult> results;
  const std::int64_t width = shape_.heads_q * shape_.dv();
  for (std::size_t n = 0; n < q_starts_.size(); ++n) {
    const std::int64_t length = batch_->sequences()[n].q_length;
    AttentionResult r;
    r.out = out_.values(q_starts_[n] * width, length * width);
    for (std::int64_t h = 0; h < (shape_.lse ? shape_.heads_q : 0); ++h) {
      const auto row = lse_.values(h * rows_q_ + q_starts_[n], length);
      r.lse.insert(r.lse.end(), row.begin(), row.end());
    }
    results.push_back(std::move(r));
  }
  return results;
}

}  // namespace packattn::test
