// SPDX-License-Identifier: Apache-2.0
#include "conformance/attention_promises.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/coverage.h"
#include "support/random.h"

namespace packattn::test {
namespace {

// Rows [begin, end) of a result.
AttentionResult rows_of(const AttentionResult& r, const AttentionCase& c, std::int64_t rows,
                        std::int64_t begin, std::int64_t end) {
  const std::int64_t width = c.heads_q * c.dv();
  AttentionResult part;
  part.out.assign(r.out.begin() + begin * width, r.out.begin() + end * width);
  for (std::int64_t h = 0; h < (r.lse.empty() ? 0 : c.heads_q); ++h) {
    part.lse.insert(part.lse.end(), r.lse.begin() + h * rows + begin,
                    r.lse.begin() + h * rows + end);
  }
  return part;
}

}  // namespace

AttentionPromises::AttentionPromises(AttentionData data, std::string implementation)
    : data_(std::move(data)),
      implementation_(std::move(implementation)),
      placement_(std::make_unique<AttentionPlacement>(data_)) {}

bool AttentionPromises::taken() {
  const auto declined = placement_->declined(implementation_);
  if (takes(implementation_, declined)) return true;
  reason_ = implementation_ + " declines by " + code_id(declined->code);
  try {
    run();
    ADD_FAILURE() << implementation_ << " ran what it declines";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::implementation_declined);
    EXPECT_NE(std::string(error.what()).find(declined->message), std::string::npos);
  }
  return false;
}

bool AttentionPromises::is_causal(const AttentionCase& c) { return c.causal; }
bool AttentionPromises::can_continue(const AttentionCase& c) {
  return c.causal && c.align == Align::bottom_right;
}
bool AttentionPromises::can_split(const AttentionCase& c) {
  const bool plain = !c.window.left && !c.window.right && c.slopes == Slopes::none;
  return plain && (!c.causal || c.align == Align::bottom_right);
}

void AttentionPromises::expect_same(const AttentionResult& actual, const AttentionResult& expected,
                                    const std::string& what) {
  const auto rows =
      static_cast<std::int64_t>(expected.out.size()) / (shape().heads_q * shape().dv());
  EXPECT_TRUE(same_bits(actual.out, expected.out, out_shape(rows))) << "out, " << what;
  EXPECT_TRUE(same_bits(actual.lse, expected.lse, lse_shape(rows))) << "lse, " << what;
}

void AttentionPromises::all() {
  equal_the_oracle();
  repeat_on_any_threads();
  packed_is_alone();
  any_order();
  nan_stays();
  if (is_causal(shape())) later_tokens_change_nothing();
  if (can_continue(shape())) chunked_prefill_is_one_shot();
  if (can_split(shape())) split_and_merged_is_one_shot();
}

void AttentionPromises::equal_the_oracle() {
  const auto results = run();
  for (std::size_t n = 0; n < results.size(); ++n) {
    const AttentionOracle expected = data_.expected(n);
    const std::int64_t rows = data_.sequences[n].lq;
    EXPECT_TRUE(close(results[n].out, expected.out, out_shape(rows),
                      attention_limits(shape().dtype, shape().out_type())))
        << "out, sequence " << n;
    if (shape().lse) {
      EXPECT_TRUE(lse_close(results[n].lse, expected.lse, lse_shape(rows)))
          << "lse, sequence " << n;
    }
  }
}

void AttentionPromises::repeat_on_any_threads() {
  const auto once = run();
  for (const int threads : {1, 2, 3, 8, 0}) {
    const auto again = placement_->run(implementation_, threads);
    for (std::size_t n = 0; n < once.size(); ++n) {
      expect_same(again[n], once[n],
                  "sequence " + std::to_string(n) + ", threads " + std::to_string(threads));
    }
  }
}

void AttentionPromises::packed_is_alone() {
  const auto packed = run();
  for (std::size_t n = 0; n < packed.size(); ++n) {
    expect_same(run(data_.only({n}))[0], packed[n], "sequence " + std::to_string(n));
  }
}

void AttentionPromises::any_order() {
  const auto packed = run();
  Random random(seed_of(shape().name));
  std::vector<std::size_t> order;
  for (const auto n : random.permutation(static_cast<std::int64_t>(packed.size()))) {
    order.push_back(static_cast<std::size_t>(n));
  }
  const auto shuffled = run(data_.only(order));
  for (std::size_t i = 0; i < order.size(); ++i) {
    expect_same(shuffled[i], packed[order[i]], "sequence " + std::to_string(order[i]));
  }
}

void AttentionPromises::nan_stays() {
  const auto clean = run();
  for (std::size_t bad = 0; bad < data_.sequences.size(); ++bad) {
    AttentionData edited = data_;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (auto* values :
         {&edited.sequences[bad].q, &edited.sequences[bad].k, &edited.sequences[bad].v}) {
      std::fill(values->begin(), values->end(), nan);
    }
    const auto results = run(edited);
    for (std::size_t n = 0; n < results.size(); ++n) {
      if (n != bad) expect_same(results[n], clean[n], "sequence " + std::to_string(n));
    }
  }
}

void AttentionPromises::later_tokens_change_nothing() {
  const auto before = run();
  AttentionData edited = data_;
  std::vector<std::int64_t> kept_rows;
  for (AttentionSequence& s : edited.sequences) {
    const std::int64_t shift = shape().align == Align::bottom_right ? s.lk - s.lq : 0;
    const std::int64_t kept = s.lq / 2;
    const std::int64_t seen = std::clamp<std::int64_t>(kept + shift, 0, s.lk);
    std::fill(s.q.begin() + kept * shape().heads_q * shape().head_dim, s.q.end(), 3.0F);
    std::fill(s.k.begin() + seen * shape().heads_k * shape().head_dim, s.k.end(), -2.0F);
    std::fill(s.v.begin() + seen * shape().heads_k * shape().dv(), s.v.end(), 100.0F);
    kept_rows.push_back(kept);
  }
  const auto after = run(edited);
  for (std::size_t n = 0; n < after.size(); ++n) {
    const std::int64_t rows = data_.sequences[n].lq;
    expect_same(rows_of(after[n], shape(), rows, 0, kept_rows[n]),
                rows_of(before[n], shape(), rows, 0, kept_rows[n]),
                "sequence " + std::to_string(n));
  }
}

/// sm90/attention gives sequences of few query tokens to another kernel than the others: a prefill
/// and its continuation are the same bits only where one kernel computes both.
bool AttentionPromises::same_kernel(std::int64_t rows, std::int64_t other_rows) const {
  const std::int64_t few = 16 / std::min<std::int64_t>(16, shape().heads_q / shape().heads_k);
  return implementation_ != "sm90/attention" || (rows <= few) == (other_rows <= few);
}

void AttentionPromises::chunked_prefill_is_one_shot() {
  const auto whole = run();
  Random random(seed_of(shape().name));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const AttentionSequence& s = data_.sequences[n];
    if (s.lq == 0) continue;
    // The last row alone is a decode step after a prefill.
    for (const std::int64_t cut : {std::int64_t{1}, random.between(0, s.lq), s.lq - 1}) {
      AttentionData parts = data_.only({});
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, s.lq}}) {
        const std::int64_t keys = std::max<std::int64_t>(0, end + s.lk - s.lq);
        parts.sequences.push_back(data_.cut(n, begin, end, 0, keys));
      }
      const auto results = run(parts);
      const std::string what =
          "sequence " + std::to_string(n) + " cut at row " + std::to_string(cut);
      if (same_kernel(cut, s.lq)) {
        expect_same(results[0], rows_of(whole[n], shape(), s.lq, 0, cut), what);
      }
      if (same_kernel(s.lq - cut, s.lq)) {
        expect_same(results[1], rows_of(whole[n], shape(), s.lq, cut, s.lq), what);
      }
    }
  }
}

void AttentionPromises::split_and_merged_is_one_shot() {
  for (std::size_t n = 0; n < data_.sequences.size(); ++n) {
    const AttentionSequence& s = data_.sequences[n];
    const std::int64_t cut = s.lk / 3;
    AttentionData first = data_.only({});
    first.shape.out_dtype = DType::f32;
    first.shape.lse = true;
    AttentionData second = first;
    first.sequences.push_back(data_.cut(n, 0, s.lq, 0, cut));
    second.sequences.push_back(data_.cut(n, 0, s.lq, cut, s.lk));
    first.shape.sinks = false;  // the sink belongs to one part
    if (shape().causal) {
      first.shape.causal = false;
      first.shape.window.right = s.lk - cut;
    }
    auto a = run(first)[0];
    const auto b = run(second)[0];
    const auto view = [](const std::vector<float>& values, std::vector<std::int64_t> dims) {
      return TensorView(const_cast<float*>(values.data()), DType::f32, {}, dims);
    };
    merge_states({.out_a = view(a.out, out_shape(s.lq)),
                  .lse_a = view(a.lse, lse_shape(s.lq)),
                  .out_b = view(b.out, out_shape(s.lq)),
                  .lse_b = view(b.lse, lse_shape(s.lq)),
                  .out = view(a.out, out_shape(s.lq)),
                  .lse = view(a.lse, lse_shape(s.lq))});
    const AttentionOracle expected = data_.expected(n);
    EXPECT_TRUE(
        close(a.out, expected.out, out_shape(s.lq), attention_limits(shape().dtype, DType::f32)))
        << "sequence " << n;
    EXPECT_TRUE(lse_close(a.lse, expected.lse, lse_shape(s.lq))) << "sequence " << n;
  }
}

void AttentionPromises::workspace_and_progress() {
  // On a device the workspace is device memory and no progress is reported.
  if (runs_on_device(implementation_)) return;
  const auto own = run();
  Context context{.threads = 2, .implementation = implementation_};
  const std::size_t bytes = attention_workspace_bytes(placement_->args(), placement_->batch(),
                                                      placement_->options(), context);
  Guarded memory(DType::u8, {static_cast<std::int64_t>(bytes)});
  context.workspace = {memory.view().as<std::byte>(), bytes};
  std::int64_t last = 0;
  std::int64_t total = -1;
  context.progress = [&](std::int64_t done, std::int64_t of) {
    EXPECT_EQ(done, last + 1);
    EXPECT_TRUE(total == -1 || total == of);
    last = done;
    total = of;
  };
  const auto given = placement_->run(context);
  EXPECT_EQ(memory.damaged(), 0) << "bytes around the workspace were written";
  EXPECT_TRUE(total == -1 || last == total) << last << " of " << total;
  for (std::size_t n = 0; n < own.size(); ++n) {
    expect_same(given[n], own[n], "sequence " + std::to_string(n));
  }
}

}  // namespace packattn::test
