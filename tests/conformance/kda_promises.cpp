// SPDX-License-Identifier: Apache-2.0
#include "conformance/kda_promises.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "support/coverage.h"
#include "support/random.h"

namespace packattn::test {
namespace {

std::string sequence(std::size_t n) { return "sequence " + std::to_string(n); }

}  // namespace

KdaPromises::KdaPromises(Op op, KdaData data, std::string implementation)
    : op_(op),
      data_(std::move(data)),
      implementation_(std::move(implementation)),
      placement_(std::make_unique<KdaPlacement>(data_)) {}

bool KdaPromises::taken() {
  const auto declined = placement_->declined(op_, implementation_);
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

// Beta per value channel and slot columns belong to the recurrence, chunk states to the chunks.
bool KdaPromises::has_form(Op op, const KdaCase& c) {
  if (op == Op::kda_recurrent) return !c.chunk_states;
  return !c.beta_per_channel && c.slots != KdaSlots::columns;
}
// Columns have a state per token; the calls they are compared with have one per sequence.
bool KdaPromises::has_one_state(const KdaCase& c) { return c.slots != KdaSlots::columns; }
bool KdaPromises::can_continue(const KdaCase& c) {
  return c.slots == KdaSlots::none && !c.chunk_states && c.form == Form::contiguous;
}

void KdaPromises::expect_same_states(const std::vector<std::vector<float>>& actual,
                                     const std::vector<std::vector<float>>& expected,
                                     const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(same_bits(actual[i], expected[i], state_shape())) << what << " " << i;
  }
}

void KdaPromises::expect_same(const KdaResult& actual, const KdaResult& expected,
                              const std::string& what) {
  EXPECT_TRUE(same_bits(actual.out, expected.out, out_shape(expected.out.size())))
      << "out, " << what;
  EXPECT_TRUE(same_bits(actual.final, expected.final, state_shape())) << "state, " << what;
  expect_same_states(actual.columns, expected.columns, what + ", column");
  expect_same_states(actual.chunk_states, expected.chunk_states, what + ", chunk");
}

void KdaPromises::all() {
  equal_the_oracle();
  no_tokens_keep_the_state();
  repeat_on_any_threads();
  if (has_one_state(shape())) packed_is_alone_in_any_order();
  nan_stays();
  later_tokens_change_nothing();
  if (can_continue(shape())) continued_is_one_shot();
}

void KdaPromises::equal_the_oracle() {
  const auto results = run();
  for (std::size_t n = 0; n < results.size(); ++n) {
    if (shape().skipped(n)) continue;  // checked to be 0 by the placement
    const KdaResult& r = results[n];
    const bool every_state = !r.columns.empty() || !r.chunk_states.empty();
    const KdaOracle expected = data_.expected(n, every_state);
    EXPECT_TRUE(close(r.out, expected.out, out_shape(r.out.size()), out_limits())) << sequence(n);
    if (!r.final.empty()) {
      EXPECT_TRUE(close(r.final, expected.final, state_shape(), state_limits(shape().state_dtype)))
          << "state, " << sequence(n);
    }
    for (std::size_t t = 0; t < r.columns.size(); ++t) {
      EXPECT_TRUE(
          close(r.columns[t], expected.states[t], state_shape(), state_limits(shape().state_dtype)))
          << sequence(n) << ", token " << t;
    }
    const auto chunk = static_cast<std::size_t>(shape().options.chunk_size);
    for (std::size_t i = 0; i < r.chunk_states.size(); ++i) {
      const std::vector<float>& initial = data_.sequences[n].initial;
      const std::vector<double> before = i > 0
                                             ? expected.states[i * chunk - 1]
                                             : std::vector<double>(initial.begin(), initial.end());
      EXPECT_TRUE(close(r.chunk_states[i], before, state_shape(), state_limits(DType::f32)))
          << sequence(n) << ", chunk " << i;
    }
  }
}

void KdaPromises::no_tokens_keep_the_state() {
  const auto results = run();
  for (std::size_t n = 0; n < results.size(); ++n) {
    if (data_.sequences[n].t != 0 || results[n].final.empty()) continue;
    std::vector<float> initial = data_.sequences[n].initial;
    initial.resize(static_cast<std::size_t>(data_.state_size()), 0);
    EXPECT_TRUE(same_bits(results[n].final, initial, state_shape())) << sequence(n);
  }
}

void KdaPromises::repeat_on_any_threads() {
  const auto once = run();
  for (const int threads : {1, 2, 3, 8, 0}) {
    const auto again = placement_->run(op_, implementation_, threads);
    for (std::size_t n = 0; n < once.size(); ++n) {
      expect_same(again[n], once[n], sequence(n) + ", threads " + std::to_string(threads));
    }
  }
}

void KdaPromises::packed_is_alone_in_any_order() {
  const auto packed = run();
  Random random(seed_of(shape().name));
  std::vector<std::size_t> order;
  for (const auto n : random.permutation(static_cast<std::int64_t>(packed.size()))) {
    order.push_back(static_cast<std::size_t>(n));
  }
  const auto shuffled = run(data_.only(order));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t n = order[i];
    if (shape().skipped(n)) continue;
    KdaResult alone = run(data_.only({n}))[0];
    KdaResult other = shuffled[i];
    if (!shape().writes_state()) alone.final = other.final = {};
    expect_same(alone, packed[n], sequence(n) + " alone");
    expect_same(other, packed[n], sequence(n) + " in another place");
  }
}

void KdaPromises::nan_stays() {
  const auto clean = run();
  for (std::size_t bad = 0; bad < data_.sequences.size(); ++bad) {
    KdaData edited = data_;
    KdaSequence& s = edited.sequences[bad];
    for (auto* values : {&s.q, &s.k, &s.v, &s.g, &s.beta}) {
      std::fill(values->begin(), values->end(), std::numeric_limits<float>::quiet_NaN());
    }
    const auto results = run(edited);
    for (std::size_t n = 0; n < results.size(); ++n) {
      if (n != bad) expect_same(results[n], clean[n], sequence(n));
    }
  }
}

void KdaPromises::later_tokens_change_nothing() {
  const auto before = run();
  KdaData edited = data_;
  for (KdaSequence& s : edited.sequences) {
    const auto edit = [&](std::vector<float>& values, float value) {
      const auto width = s.t == 0 ? 0 : static_cast<std::int64_t>(values.size()) / s.t;
      std::fill(values.begin() + (s.t / 2) * width, values.end(), value);
    };
    edit(s.q, 3);
    edit(s.k, 0.05F);
    edit(s.v, -100);
    edit(s.g, -30);
    edit(s.beta, 0.5F);
  }
  const auto after = run(edited);
  for (std::size_t n = 0; n < after.size(); ++n) {
    const std::size_t rows = static_cast<std::size_t>(data_.sequences[n].t / 2);
    const std::size_t kept =
        rows * static_cast<std::size_t>(shape().value_heads * shape().value_dim);
    EXPECT_TRUE(
        same_bits({after[n].out.data(), kept}, {before[n].out.data(), kept}, out_shape(kept)))
        << sequence(n);
  }
}

void KdaPromises::continued_is_one_shot() {
  const std::int64_t chunk = shape().options.chunk_size;
  for (std::size_t n = 0; n < data_.sequences.size(); ++n) {
    const KdaSequence& s = data_.sequences[n];
    if (s.t < 2) continue;
    KdaData whole = data_.only({n});
    whole.shape.state_dtype = DType::f32;  // a rounded state is not the one it continues from
    whole.shape.out_dtype = data_.shape.out_type();
    const KdaResult expected = run(whole)[0];
    const KdaOracle oracle = data_.expected(n);
    const std::int64_t at_chunk = s.t > chunk ? chunk : 0;
    for (const std::int64_t cut : {std::int64_t{1}, s.t / 2, s.t - 1, at_chunk}) {
      const std::string what = sequence(n) + " cut at " + std::to_string(cut);
      KdaData part = whole;
      part.sequences = {data_.cut(n, 0, cut, s.initial)};
      KdaResult first = run(part)[0];
      part.sequences = {data_.cut(n, cut, s.t, first.final)};
      part.shape.state = KdaState::separate;
      const KdaResult second = run(part)[0];
      KdaResult joined = first;
      joined.out.insert(joined.out.end(), second.out.begin(), second.out.end());
      joined.final = second.final;
      // The recurrence has no chunks: every cut is exact, in an implementation whose state
      // between tokens is the fp32 of the stored one. The reference has fp64 inside.
      const bool exact = op_ == Op::kda_recurrent || cut % chunk == 0;
      if (exact && !implementation_.starts_with("ref/")) expect_same(joined, expected, what);
      EXPECT_TRUE(close(joined.out, oracle.out, out_shape(joined.out.size()), out_limits()))
          << what;
      EXPECT_TRUE(close(joined.final, oracle.final, state_shape(), state_limits(DType::f32)))
          << what;
    }
  }
}

void KdaPromises::device_workspace() {
  const auto own = run();
  // A planner's share is in it too, so that it serves boundaries on either side.
  constexpr std::size_t guard = 256;
  Context context{.implementation = implementation_};
  const std::size_t bytes = placement_->device_workspace_bytes(op_, context);
  DeviceMemory memory(bytes + 2 * guard);
  std::vector<std::byte> image(bytes + 2 * guard, std::byte{0xa5});
  memory.put(image);
  context.workspace = {memory.data() + guard, bytes};
  const auto given = placement_->run(op_, context);
  memory.get(image);
  const auto untouched = [](std::byte b) { return b == std::byte{0xa5}; };
  EXPECT_TRUE(std::all_of(image.begin(), image.begin() + guard, untouched));
  EXPECT_TRUE(std::all_of(image.end() - guard, image.end(), untouched));
  for (std::size_t n = 0; n < own.size(); ++n) expect_same(given[n], own[n], sequence(n));
}

void KdaPromises::workspace_and_progress() {
  if (runs_on_device(implementation_)) return device_workspace();
  const auto own = run();
  Context context{.threads = 2, .implementation = implementation_};
  const std::size_t bytes = kda_workspace_bytes(op_, placement_->args(), placement_->batch(),
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
  const auto given = placement_->run(op_, context);
  EXPECT_EQ(memory.damaged(), 0) << "bytes around the workspace were written";
  EXPECT_TRUE(total == -1 || last == total) << last << " of " << total;
  for (std::size_t n = 0; n < own.size(); ++n) expect_same(given[n], own[n], sequence(n));
}

}  // namespace packattn::test
