// SPDX-License-Identifier: Apache-2.0
#include "unit/kda_check_support.h"

namespace packattn::test {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct KdaStateChecks : KdaChecks {};

TEST_F(KdaStateChecks, StatesByLayoutShapeAndCount) {
  options.state_layout = {};
  expect(Code::state_layout_missing, "initial_state");
  options.state_layout = StateLayout::v_first;
  EXPECT_THAT(codes(), UnorderedElementsAre(Code::state_shape, Code::state_shape));
  EXPECT_THAT(faults().front().note, HasSubstr("k_first"));
  options.state_layout = StateLayout::k_first;
  args.initial_state = reshape(args.initial_state, {3, 4, 16, 24});
  expect(Code::state_count, "initial_state");
  EXPECT_THAT(fault().message, HasSubstr("3 states, but there are 4 sequences"));
  args.initial_state = c.initial.view();
  Owned half(DType::f16, {4, 4, 16, 24});
  args.initial_state = half.view();
  EXPECT_THAT(codes(), UnorderedElementsAre(Code::tensor_dtype, Code::tensor_dtype_mismatch));
}

TEST_F(KdaStateChecks, OneStateArgumentOrTheOther) {
  args.state = args.initial_state;
  args.initial_state = {};
  expect(Code::state_sources, "final_state");
}

TEST_F(KdaStateChecks, Slots) {
  Owned pool(DType::f32, {5, 4, 16, 24});
  args.initial_state = args.final_state = {};
  args.state = pool.view();
  const auto with = [&](std::vector<std::int32_t> slots) {
    args.slots = TensorView::of(slots);
    return faults();
  };
  EXPECT_THAT(with({0, -1, 4, 2}), testing::IsEmpty());
  EXPECT_EQ(with({0, 1, 2}).front().code, Code::slot_count);
  for (const auto& slots : {std::vector<std::int32_t>{0, 5, 1, 2}, {0, -2, 1, 2}}) {
    const auto all = with(slots);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].code, Code::slot_range);
    EXPECT_EQ(all[0].position, "index 1");
  }
  const auto twice = with({2, 0, 2, 1});
  ASSERT_EQ(twice.size(), 1U);
  EXPECT_EQ(twice[0].code, Code::slot_duplicate);
  EXPECT_EQ(twice[0].position, "index 2");

  std::vector<std::int64_t> read{0, 1, 2, 3}, write{4, 0, -1, 3};
  args.slots = {};
  args.read_slots = TensorView::of(read);
  expect(Code::tensor_missing, "write_slots");
  args.write_slots = TensorView::of(write);
  EXPECT_EQ(fault().code, Code::slot_read_and_written);
  args.slots = TensorView::of(read);
  EXPECT_THAT(codes(), UnorderedElementsAre(Code::options_conflict, Code::options_conflict));
  args.state = {};
  args.read_slots = args.write_slots = {};
  expect(Code::slots_without_state, "slots");
}

TEST_F(KdaStateChecks, ManyWrongSlotsAreShownOnceAndCounted) {
  constexpr std::int64_t N = 100000;
  KdaCase many({.lengths = std::vector<std::int64_t>(N, 0), .K = 4, .V = 4});
  Owned pool(DType::f32, {5, 2, 4, 4});
  std::vector<std::int32_t> slots(N, 7);
  slots[3] = 2;
  KdaArgs a = many.args();
  a.initial_state = a.final_state = {};
  a.state = pool.view();
  a.slots = TensorView::of(slots);
  const auto all = check_kda(op, a, many.batch(), many.options);
  EXPECT_EQ(all.size(), 16U);
  EXPECT_EQ(count(all), static_cast<std::uint64_t>(N - 1));
  EXPECT_LT(render(all).size(), 4000U);
}

TEST_F(KdaStateChecks, SlotColumnsAndAcceptedTokens) {
  Owned pool(DType::f32, {20, 4, 16, 24});
  args.initial_state = args.final_state = {};
  args.state = pool.view();
  std::vector<std::int32_t> slots(20), accepted{1, 2, 5, 3};
  for (int i = 0; i < 20; ++i) slots[static_cast<std::size_t>(i)] = i;
  args.slots = TensorView::of(slots.data(), {4, 5});
  args.num_accepted_tokens = TensorView::of(accepted);
  EXPECT_THAT(faults(), testing::IsEmpty());
  accepted[1] = 0;
  EXPECT_EQ(fault().code, Code::accepted_tokens_range);
  EXPECT_EQ(fault().position, "sequence 1");
  accepted[1] = 6;
  EXPECT_EQ(fault().code, Code::accepted_tokens_range);
  accepted[1] = 2;
  args.slots = TensorView::of(slots.data(), {4, 3});
  accepted[2] = 3;
  expect(Code::slot_columns, "slots");
  EXPECT_EQ(fault().position, "sequence 3");
  args.slots = TensorView::of(slots.data(), {4});
  expect(Code::accepted_without_columns, "num_accepted_tokens");
  args.num_accepted_tokens = {};
  args.slots = TensorView::of(slots.data(), {4, 5});
  op = Op::kda_chunk;
  EXPECT_EQ(fault().code, Code::option_unsupported);
}

}  // namespace
}  // namespace packattn::test
