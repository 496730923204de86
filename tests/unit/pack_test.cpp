// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packattn/packed.h"

#include "support/boundaries.h"
#include "support/faults.h"

namespace packattn::test {
namespace {

using testing::ElementsAre;
using Ends = std::vector<std::int64_t>;

/// Element i holds i + 1, so that a 0 is never a copied value.
void count_up(Guarded& tensor) {
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.set(i, static_cast<double>(i % 200 + 1));
  tensor.freeze();
}

/// Row of `padded` [B, S] that token t of the batch comes from.
using Source = std::vector<std::int64_t>;

void expect_round_trip(const PackedBatch& batch, std::int64_t width, const Source& source,
                       DType dtype, Form form, Side side = Side::query) {
  const std::int64_t inner = 2 * 3;
  Guarded padded(dtype, {batch.size(), width, 2, 3}, form);
  count_up(padded);
  Guarded packed(dtype, {static_cast<std::int64_t>(source.size()), 2, 3}, form);
  pack(padded.view(true), batch, packed.view(), side);
  EXPECT_TRUE(padded.unchanged());
  EXPECT_EQ(packed.damaged(), 0);
  for (std::size_t t = 0; t < source.size(); ++t) {
    for (std::int64_t i = 0; i < inner; ++i) {
      ASSERT_EQ(packed.get(static_cast<std::int64_t>(t) * inner + i),
                padded.get(source[t] * inner + i))
          << "token " << t;
    }
  }
  packed.freeze();
  Guarded back(dtype, {batch.size(), width, 2, 3}, form);
  unpack(packed.view(true), batch, back.view(), side);
  EXPECT_TRUE(packed.unchanged());
  EXPECT_EQ(back.damaged(), 0);
  std::vector<bool> token(static_cast<std::size_t>(batch.size() * width), false);
  for (const std::int64_t row : source) token[static_cast<std::size_t>(row)] = true;
  for (std::int64_t i = 0; i < back.numel(); ++i) {
    ASSERT_EQ(back.get(i), token[static_cast<std::size_t>(i / inner)] ? padded.get(i) : 0) << i;
  }
}

TEST(Pack, EveryTypeAndLayout) {
  const auto batch = PackedBatch::from_lengths(Ends{2, 0, 3});
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i64, DType::i32,
                            DType::i16, DType::u8, DType::boolean}) {
    for (const Form form : {Form::contiguous, Form::wide, Form::heads_first, Form::odd_base}) {
      expect_round_trip(batch, 3, {0, 1, 6, 7, 8}, dtype, form);
    }
  }
}

TEST(Pack, AWiderPaddingIsLeftAlone) {
  expect_round_trip(PackedBatch::from_lengths(Ends{2, 0, 3}), 5, {0, 1, 10, 11, 12}, DType::f32,
                    Form::contiguous);
}

TEST(Pack, LeftPaddedAndHoleyMasks) {
  Guarded mask(DType::boolean, {2, 4});
  for (std::int64_t i = 0; i < 8; ++i) mask.set(i, i == 2 || i == 3 || i == 4 || i == 6 ? 1 : 0);
  const auto batch = PackedBatch::from_padding_mask(mask.view());
  expect_round_trip(batch, 4, {2, 3, 4, 6}, DType::bf16, Form::wide);
}

TEST(Pack, EachSideHasItsOwnTokens) {
  const Guarded q = padding_mask({2, 1}), k = padding_mask({1, 3});
  const auto batch = PackedBatch::from_padding_mask(q.view(), k.view());
  expect_round_trip(batch, 4, {2, 3, 4}, DType::f32, Form::contiguous, Side::query);
  expect_round_trip(batch, 5, {4, 5, 6, 7}, DType::f32, Form::contiguous, Side::key);
}

TEST(Pack, GapsStayUntouched) {
  const auto batch = PackedBatch::from_starts_and_lengths(Ends{4, 1}, Ends{2, 1});
  Guarded padded(DType::f32, {2, 2}), packed(DType::f32, {7});
  count_up(padded);
  pack(padded.view(), batch, packed.view());
  EXPECT_EQ(packed.unwritten(), 4);
  EXPECT_EQ(packed.get(4), 1);
  EXPECT_EQ(packed.get(5), 2);
  EXPECT_EQ(packed.get(1), 3);
}

TEST(Pack, NothingToPack) {
  const auto batch = PackedBatch::from_lengths(Ends{});
  Guarded padded(DType::f32, {0, 3, 2}), packed(DType::f32, {0, 2});
  pack(padded.view(), batch, packed.view());
  unpack(packed.view(), batch, padded.view());
}

class PackFaults : public testing::Test {
 protected:
  PackedBatch batch = PackedBatch::from_lengths(Ends{2, 3});
  Guarded padded{DType::f32, {2, 3, 4}}, packed{DType::f32, {5, 4}};
  std::vector<Fault> packing(const TensorView& from, const TensorView& to) {
    return faults_of([&] { pack(from, batch, to); });
  }
};

TEST_F(PackFaults, MissingTensors) {
  EXPECT_THAT(packing({}, {}), ElementsAre(IsFault(Code::tensor_missing, "padded", "", ""),
                                           IsFault(Code::tensor_missing, "packed", "", "")));
}

TEST_F(PackFaults, Types) {
  Guarded half(DType::f16, {5, 4});
  EXPECT_THAT(packing(padded.view(), half.view()),
              ElementsAre(IsFault(Code::tensor_dtype_mismatch, "packed", "padded", "fp16")));
}

TEST_F(PackFaults, Shapes) {
  Guarded narrow(DType::f32, {2, 2, 4}), wrong(DType::f32, {5, 3}), rows(DType::f32, {6, 4});
  EXPECT_THAT(packing(narrow.view(), packed.view()),
              ElementsAre(IsFault(Code::tensor_shape, "padded", "", "[2, 2, 4]")));
  EXPECT_THAT(packing(padded.view(), wrong.view()),
              ElementsAre(IsFault(Code::tensor_shape, "packed", "", "[5, 3]")));
  EXPECT_THAT(packing(padded.view(), rows.view()),
              ElementsAre(IsFault(Code::rows_after_end, "lengths_q", "packed", "5")));
  Guarded flat(DType::f32, {5});
  EXPECT_THAT(packing(padded.view(), flat.view()),
              ElementsAre(IsFault(Code::tensor_shape, "packed", "", "[5]")));
}

TEST_F(PackFaults, ReadOnlyTargets) {
  EXPECT_THAT(packing(padded.view(), packed.view(true)),
              ElementsAre(IsFault(Code::read_only_output, "packed", "", "")));
  EXPECT_THAT(faults_of([&] { unpack(packed.view(), batch, padded.view(true)); }),
              ElementsAre(IsFault(Code::read_only_output, "padded", "", "")));
}

TEST_F(PackFaults, SharedMemory) {
  const std::int64_t shape[] = {5, 4};
  const TensorView inside(padded.view().data(), DType::f32, {}, shape);
  EXPECT_THAT(packing(padded.view(), inside),
              ElementsAre(IsFault(Code::outputs_overlap, "packed", "", "padded")));
}

TEST_F(PackFaults, PagedKeysHaveNoRows) {
  const Guarded cu = integers(DType::i32, {0, 2}), lengths = integers(DType::i32, {3});
  Guarded table(DType::i32, {1, 1});
  table.set(0, 0);
  const auto paged = PackedBatch::paged(cu.view(), lengths.view(), table.view());
  Guarded from(DType::f32, {1, 3}), to(DType::f32, {3});
  EXPECT_THAT(faults_of([&] { pack(from.view(), paged, to.view(), Side::key); }),
              testing::Contains(IsFault(Code::key_rows_unused, "the batch", "packed", "1")));
}

TEST_F(PackFaults, NoImplementationsToForce) {
  const Context forced{.implementation = "cpu/pack"};
  EXPECT_THAT(
      faults_of([&] { pack(padded.view(), batch, packed.view(), Side::query, forced); }),
      testing::ElementsAre(IsFault(Code::implementation_unknown, "pack", "", "\"cpu/pack\"")));
  EXPECT_THAT(
      faults_of([&] { unpack(packed.view(), batch, padded.view(), Side::query, forced); }),
      testing::ElementsAre(IsFault(Code::implementation_unknown, "unpack", "", "\"cpu/pack\"")));
}

TEST_F(PackFaults, Devices) {
  const std::int64_t shape[] = {2, 3, 4};
  const TensorView far(padded.view().data(), DType::f32, {DeviceType::cuda, 0}, shape);
  const auto all = packing(far, packed.view());
  EXPECT_THAT(all, testing::Contains(IsFault(Code::tensor_device, "packed", "padded", "cpu")));
}

}  // namespace
}  // namespace packattn::test
