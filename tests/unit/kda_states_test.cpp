// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "unit/kda_support.h"

namespace packattn::test {
namespace {

class KdaStates : public testing::TestWithParam<KdaImplementationName> {
 protected:
  void run(KdaCase& c, const KdaArgs& args) {
    run_kda(GetParam().op, args, c.batch(), c.options,
            {.threads = 2, .implementation = GetParam().name});
  }
  static constexpr std::int64_t K = 24, V = 40, state = 2 * K * V;
  static KdaShape shape(std::vector<std::int64_t> lengths) {
    return {.lengths = std::move(lengths), .K = K, .V = V};
  }
  static Owned pool(std::int64_t slots) {
    return Owned(DType::f32, {slots, 2, K, V}).fill([](std::int64_t i) {
      return std::sin(static_cast<float>(i));
    });
  }
  static bool same(const Owned& a, std::int64_t slot_a, const Owned& b, std::int64_t slot_b) {
    return std::memcmp(a.bytes().data() + slot_a * state * 4, b.bytes().data() + slot_b * state * 4,
                       state * 4) == 0;
  }
};

// What only one of the two forms takes.
class KdaChunkStates : public KdaStates {};
class KdaRecurrentStates : public KdaStates {};

INSTANTIATE_TEST_SUITE_P(, KdaStates, testing::ValuesIn(kda_implementations()), kda_test_name);
INSTANTIATE_TEST_SUITE_P(, KdaChunkStates, testing::ValuesIn(kda_implementations({Op::kda_chunk})),
                         kda_test_name);
INSTANTIATE_TEST_SUITE_P(, KdaRecurrentStates,
                         testing::ValuesIn(kda_implementations({Op::kda_recurrent})),
                         kda_test_name);

TEST_P(KdaStates, NullSlotSkipsAndOtherSlotsAreUntouched) {
  KdaCase c(shape({20, 30}));
  Owned states = pool(5);
  const Owned before = states;
  std::vector<std::int32_t> slots{-1, 3};
  KdaArgs args = c.args();
  args.initial_state = args.final_state = {};
  args.state = states.view();
  args.slots = TensorView::of(slots);
  run(c, args);
  for (const std::int64_t slot : {0, 1, 2, 4})
    EXPECT_TRUE(same(states, slot, before, slot)) << slot;
  EXPECT_FALSE(same(states, 3, before, 3));
  for (std::int64_t i = 0; i < 20 * 2 * V; ++i) EXPECT_EQ(c.out[i], 0);
  EXPECT_NE(c.out[20 * 2 * V], 0);
}

TEST_P(KdaStates, AnotherNullSlot) {
  KdaCase c(shape({5, 6}));
  Owned states = pool(3);
  const Owned before = states;
  std::vector<std::int64_t> slots{0, 2};
  KdaArgs args = c.args();
  args.initial_state = args.final_state = {};
  args.state = states.view();
  args.slots = TensorView::of(slots);
  c.options.null_slot = 0;
  run(c, args);
  EXPECT_TRUE(same(states, 0, before, 0));
  EXPECT_FALSE(same(states, 2, before, 2));
}

TEST_P(KdaStates, SlotsInPlaceAndSeparateStatesAgree) {
  KdaCase plain(shape({20, 0, 9}));
  run(plain, plain.args());
  Owned states = pool(7);
  const std::vector<std::int64_t> read{5, 0, 2}, write{1, 4, 3};
  for (std::size_t n = 0; n < 3; ++n) {
    for (std::int64_t i = 0; i < state; ++i) {
      states.set(read[n] * state + i, plain.initial[static_cast<std::int64_t>(n) * state + i]);
    }
  }
  const Owned before = states;
  KdaCase slotted(shape({20, 0, 9}));
  KdaArgs args = slotted.args();
  args.initial_state = args.final_state = {};
  args.state = states.view();
  args.read_slots = TensorView::of(read);
  args.write_slots = TensorView::of(write);
  run(slotted, args);
  EXPECT_EQ(slotted.out.bytes(), plain.out.bytes());
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_TRUE(same(states, write[n], plain.final, static_cast<std::int64_t>(n)));
    EXPECT_TRUE(same(states, read[n], before, read[n]));
  }
}

TEST_P(KdaStates, WithoutBoundariesEveryRowIsASequence) {
  KdaCase packed(shape({13, 13, 13}));
  run(packed, packed.args());
  KdaCase batched(shape({13, 13, 13}));
  const auto reshaped = [](const TensorView& x) {
    std::vector<std::int64_t> sizes{3, 13};
    for (int dim = 2; dim < x.rank(); ++dim) sizes.push_back(x.size(dim));
    return TensorView(x.data(), x.dtype(), x.device(), sizes);
  };
  KdaArgs args = batched.args();
  for (TensorView* x : {&args.q, &args.k, &args.v, &args.g, &args.beta, &args.out}) {
    *x = reshaped(*x);
  }
  const Context context{.implementation = GetParam().name};
  GetParam().op == Op::kda_chunk ? kda_chunk(args, batched.options, context)
                                 : kda_recurrent(args, batched.options, context);
  EXPECT_EQ(batched.out.bytes(), packed.out.bytes());
  EXPECT_EQ(batched.final.bytes(), packed.final.bytes());
}

TEST_P(KdaStates, ASpareTailIsZeroWithTheCapacityOption) {
  KdaCase c(shape({30}));
  std::vector<std::int64_t> cu{0, 10, 21};
  c.initial = pool(2);
  c.final = pool(2);
  run_kda(GetParam().op, c.args(),
          PackedBatch(BatchSpec{.cu_seqlens_q = TensorView::of(cu), .capacity = true}), c.options,
          {.implementation = GetParam().name});
  for (std::int64_t i = 21 * 2 * V; i < c.out.numel(); ++i) EXPECT_EQ(c.out[i], 0);
  EXPECT_NE(c.out[20 * 2 * V], 0);
}

TEST_P(KdaStates, FusedProjectionSlicesAndWideStrides) {
  KdaCase plain(shape({25}));
  run(plain, plain.args());
  // q, k and v as slices of one row of 24 + 24 + 80 + 10 elements, g with its own stride.
  const std::int64_t row = 138;
  Owned fused(DType::f32, {1, 25, row});
  const auto slice = [&](const Owned& from, std::int64_t at, std::vector<std::int64_t> inner) {
    const std::int64_t width = from.numel() / 25;
    for (std::int64_t i = 0; i < from.numel(); ++i) {
      fused.set(i / width * row + at + i % width, from[i]);
    }
    const std::vector<std::int64_t> sizes{1, 25, inner[0], inner[1]}, strides{1, row, inner[1], 1};
    return TensorView(fused.view().as<float>() + at, DType::f32, Device{}, sizes, strides);
  };
  KdaCase c(shape({25}));
  KdaArgs args = c.args();
  args.q = slice(plain.q, 0, {1, K});
  args.k = slice(plain.k, K, {1, K});
  args.v = slice(plain.v, 2 * K, {2, V});
  run(c, args);
  EXPECT_EQ(c.out.bytes(), plain.out.bytes());
}

TEST_P(KdaChunkStates, StatesAtChunkStartsAndRestart) {
  for (const int C : {16, 32, 64}) {
    KdaCase c(shape({100, 0, 40}));
    c.options.chunk_size = C;
    const std::int64_t chunks = kda_chunk_count(c.batch(), C);
    ASSERT_EQ(chunks, (100 + C - 1) / C + (40 + C - 1) / C);
    Owned states(DType::f32, {chunks, 2, K, V});
    KdaArgs args = c.args();
    args.chunk_states = states.view();
    run(c, args);
    EXPECT_TRUE(same(states, 0, c.initial, 0));
    EXPECT_TRUE(same(states, (100 + C - 1) / C, c.initial, 2));
    // From the state before any of its chunks, sequence 0 goes on and ends the same.
    for (std::int64_t start = 0; start < 100; start += C) {
      const std::int64_t rest = 100 - start;
      KdaCase tail(shape({rest}));
      tail.options = c.options;
      const auto copy = [&](const Owned& from, Owned& to) {
        const std::int64_t width = from.numel() / 140;
        to.fill([&](std::int64_t i) { return from[start * width + i]; });
      };
      copy(c.q, tail.q), copy(c.k, tail.k), copy(c.v, tail.v), copy(c.g, tail.g);
      copy(c.beta, tail.beta);
      tail.initial.fill([&](std::int64_t i) { return states[start / C * state + i]; });
      run(tail, tail.args());
      // The reference rounds the state that it stores and goes on in fp64.
      const bool exact = !GetParam().name.starts_with("ref/");
      const std::int64_t width = c.out.numel() / 140;
      for (std::int64_t i = 0; i < tail.out.numel(); ++i) {
        ASSERT_NEAR(tail.out[i], c.out[start * width + i], exact ? 0 : 1e-5) << C << " " << start;
      }
      if (exact) {
        EXPECT_TRUE(same(tail.final, 0, c.final, 0)) << C << " " << start;
      }
      for (std::int64_t i = 0; i < state; ++i) ASSERT_NEAR(tail.final[i], c.final[i], 1e-5);
    }
  }
}

TEST_P(KdaRecurrentStates, OneStatePerTokenAndAcceptedTokens) {
  // Drafts of three tokens for two sequences; the states after each go to columns.
  KdaCase draft(shape({3, 2}));
  Owned states = pool(8);
  const Owned before = states;
  std::vector<std::int32_t> slots{0, 1, 2, 5, 6, -1};  // [2, 3]; the last is never reached
  std::vector<std::int32_t> accepted{2, 1};
  KdaArgs args = draft.args();
  args.initial_state = args.final_state = {};
  args.state = states.view();
  args.slots = TensorView::of(slots.data(), {2, 3});
  args.num_accepted_tokens = TensorView::of(accepted);
  run(draft, args);
  for (const std::int64_t slot : {3, 4, 7}) EXPECT_TRUE(same(states, slot, before, slot));

  // The same by hand: sequence 0 starts from slot 1, sequence 1 from slot 5.
  KdaCase by_hand(shape({3, 2}));
  by_hand.initial.fill(
      [&](std::int64_t i) { return before[(i < state ? 1 : 5) * state + i % state]; });
  run(by_hand, by_hand.args());
  EXPECT_EQ(by_hand.out.bytes(), draft.out.bytes());
  EXPECT_TRUE(same(states, 2, by_hand.final, 0));
  EXPECT_TRUE(same(states, 6, by_hand.final, 1));
  // And the state after the first token of each.
  KdaCase first(shape({3, 2}));
  first.s.lengths = {1, 1};
  first.initial = by_hand.initial;
  std::vector<std::int64_t> starts{0, 3}, lengths{1, 1};
  run_kda(GetParam().op, first.args(), PackedBatch::from_starts_and_lengths(starts, lengths),
          first.options, {.implementation = GetParam().name});
  EXPECT_TRUE(same(states, 0, first.final, 0));
  EXPECT_TRUE(same(states, 5, first.final, 1));
}

TEST_P(KdaRecurrentStates, OneBetaPerChannel) {
  for (const BetaKind kind : {BetaKind::given, BetaKind::two_sigmoid}) {
    KdaCase c({.lengths = {21, 40}, .K = K, .V = V, .beta_per_channel = true});
    c.options.beta = kind;
    run(c, c.args());
    const KdaExpected expected = closed_form(c);
    EXPECT_LT(relative_error(c.out, expected.out), 5e-6);
    EXPECT_LT(relative_error(c.final, expected.final), 5e-6);
  }
}

}  // namespace
}  // namespace packattn::test
