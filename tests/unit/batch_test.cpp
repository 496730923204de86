// SPDX-License-Identifier: Apache-2.0
// PackedBatch in all its forms: what is read is what was meant.
#include <cstdint>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packattn/packed.h"

#include "support/boundaries.h"

namespace packattn::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Ends = std::vector<std::int64_t>;

std::vector<Sequence> sequences(const PackedBatch& batch) {
  return {batch.sequences().begin(), batch.sequences().end()};
}

TEST(PackedBatch, CuSeqlensOfBothWidthsAndMixed) {
  for (const DType q : {DType::i32, DType::i64}) {
    for (const DType k : {DType::i32, DType::i64}) {
      const Guarded cu_q = integers(q, {0, 5, 5, 9}), cu_k = integers(k, {0, 2, 8, 8});
      const auto batch = PackedBatch::from_cu_seqlens(cu_q.view(), cu_k.view());
      EXPECT_EQ(batch.size(), 3);
      EXPECT_THAT(sequences(batch),
                  ElementsAre(Sequence{0, 5, 0, 2}, Sequence{5, 0, 2, 6}, Sequence{5, 4, 8, 0}));
      EXPECT_EQ(batch.rows_q(), 9);
      EXPECT_EQ(batch.rows_k(), 8);
      EXPECT_EQ(batch.max_seqlen_q(), 5);
      EXPECT_EQ(batch.max_seqlen_k(), 6);
      EXPECT_FALSE(batch.shares_boundaries());
      EXPECT_TRUE(batch.host_known());
      EXPECT_FALSE(batch.is_paged());
    }
  }
}

TEST(PackedBatch, KeysShareTheQueriesBoundaries) {
  const Guarded cu = integers(DType::i32, {0, 5, 9});
  const auto batch = PackedBatch::from_cu_seqlens(cu.view());
  EXPECT_TRUE(batch.shares_boundaries());
  EXPECT_THAT(sequences(batch), ElementsAre(Sequence{0, 5, 0, 5}, Sequence{5, 4, 5, 4}));
  EXPECT_EQ(batch.rows_k(), 9);
  EXPECT_EQ(batch.max_seqlen_k(), 5);
}

TEST(PackedBatch, NoSequences) {
  const Guarded cu = integers(DType::i64, {0});
  const auto batch = PackedBatch::from_cu_seqlens(cu.view());
  EXPECT_EQ(batch.size(), 0);
  EXPECT_EQ(batch.rows_q(), 0);
  EXPECT_EQ(batch.max_seqlen_q(), 0);
  EXPECT_THAT(sequences(batch), IsEmpty());
  EXPECT_EQ(PackedBatch::from_lengths({}).size(), 0);
}

TEST(PackedBatch, TheStrideOfBoundariesCounts) {
  const Guarded pairs = strided_integers(DType::i32, {0, 3, 4});
  const auto batch = PackedBatch::from_cu_seqlens(strided_view(pairs));
  EXPECT_THAT(sequences(batch), ElementsAre(Sequence{0, 3, 0, 3}, Sequence{3, 1, 3, 1}));

  // A reversed tensor has a negative stride.
  std::vector<std::int32_t> reversed{9, 4, 0};
  const std::int64_t size = 3, stride = -1;
  const TensorView backwards(reversed.data() + 2, DType::i32, {}, {&size, 1}, {&stride, 1});
  EXPECT_THAT(sequences(PackedBatch::from_cu_seqlens(backwards)),
              ElementsAre(Sequence{0, 4, 0, 4}, Sequence{4, 5, 4, 5}));
}

TEST(PackedBatch, BoundariesAreCopiedIn) {
  Guarded cu = integers(DType::i32, {0, 5, 9});
  const auto batch = PackedBatch::from_cu_seqlens(cu.view());
  cu.set(1, 100);
  EXPECT_EQ(batch.sequences()[0].q_length, 5);
}

TEST(PackedBatch, HostCopies) {
  const Guarded cu = integers(DType::i32, {0, 5, 9}), copy = integers(DType::i64, {0, 5, 9});
  const auto batch = PackedBatch::from_cu_seqlens(cu.view(), cu.view(), copy.view(), copy.view());
  EXPECT_EQ(batch.sequences()[1], (Sequence{5, 4, 5, 4}));
}

TEST(PackedBatch, BoundariesOnADeviceWithHostCopies) {
  // Nothing at a device address is read, or this would crash.
  const std::int64_t size = 3;
  const TensorView far(reinterpret_cast<void*>(64), DType::i32, {DeviceType::cuda, 1}, {&size, 1});
  const Guarded copy = integers(DType::i32, {0, 5, 9});
  const auto batch = PackedBatch::from_cu_seqlens(far, {}, copy.view());
  EXPECT_TRUE(batch.host_known());
  EXPECT_EQ(batch.sequences()[1].q_length, 4);

  const auto unknown = PackedBatch::from_cu_seqlens(far);
  EXPECT_FALSE(unknown.host_known());
  EXPECT_THAT(sequences(unknown), IsEmpty());
  EXPECT_EQ(unknown.size(), 2);
}

TEST(PackedBatch, Lengths) {
  const Ends q{5, 0, 4}, k{1, 2, 3};
  const auto batch = PackedBatch::from_lengths(q, k);
  EXPECT_THAT(sequences(batch),
              ElementsAre(Sequence{0, 5, 0, 1}, Sequence{5, 0, 1, 2}, Sequence{5, 4, 3, 3}));
  EXPECT_TRUE(PackedBatch::from_lengths(q).shares_boundaries());
}

TEST(PackedBatch, StartsAndLengthsMayLeaveGapsAndKeysMayOverlap) {
  const Ends starts_q{10, 2}, lengths_q{3, 5}, starts_k{0, 1}, lengths_k{4, 4};
  const auto batch = PackedBatch::from_starts_and_lengths(starts_q, lengths_q, starts_k, lengths_k);
  EXPECT_THAT(sequences(batch), ElementsAre(Sequence{10, 3, 0, 4}, Sequence{2, 5, 1, 4}));
  EXPECT_EQ(batch.rows_q(), 13);
  EXPECT_EQ(batch.rows_k(), 5);
  const auto shared = PackedBatch::from_starts_and_lengths(starts_q, lengths_q);
  EXPECT_THAT(sequences(shared), ElementsAre(Sequence{10, 3, 10, 3}, Sequence{2, 5, 2, 5}));
}

TEST(PackedBatch, AnEmptySequenceMayStartAnywhere) {
  const Ends starts{0, 1, 3}, lengths{3, 0, 2};
  EXPECT_EQ(PackedBatch::from_starts_and_lengths(starts, lengths).rows_q(), 5);
}

TEST(PackedBatch, PaddingMaskOfEveryType) {
  for (const DType dtype : {DType::boolean, DType::u8, DType::i8, DType::i32, DType::i64}) {
    Guarded mask(dtype, {3, 4});
    for (std::int64_t i = 0; i < 12; ++i) mask.set(i, i >= 2 && i < 7 ? 1 : 0);  // 2, 3, 0 tokens
    const auto batch = PackedBatch::from_padding_mask(mask.view());
    EXPECT_THAT(sequences(batch),
                ElementsAre(Sequence{0, 2, 0, 2}, Sequence{2, 3, 2, 3}, Sequence{5, 0, 5, 0}));
  }
}

TEST(PackedBatch, PaddingMasksOfBothSides) {
  const Guarded q = padding_mask({2, 3}), k = padding_mask({4, 0});
  const auto batch = PackedBatch::from_padding_mask(q.view(), k.view());
  EXPECT_THAT(sequences(batch), ElementsAre(Sequence{0, 2, 0, 4}, Sequence{2, 3, 4, 0}));
}

TEST(PackedBatch, PositionIds) {
  for (const DType dtype : {DType::i32, DType::i64}) {
    const Guarded ids = integers(dtype, {0, 1, 2, 0, 0, 1});
    const auto batch = PackedBatch::from_position_ids(ids.view());
    EXPECT_THAT(sequences(batch),
                ElementsAre(Sequence{0, 3, 0, 3}, Sequence{3, 1, 3, 1}, Sequence{4, 2, 4, 2}));
    const std::int64_t shape[] = {1, 6};
    const TensorView row(ids.view().data(), dtype, {}, shape);
    EXPECT_EQ(sequences(PackedBatch::from_position_ids(row)), sequences(batch));
  }
  const Guarded none(DType::i64, {0});
  EXPECT_EQ(PackedBatch::from_position_ids(none.view()).size(), 0);
}

TEST(PackedBatch, Paged) {
  const Guarded cu = integers(DType::i32, {0, 1, 3}), lengths = integers(DType::i64, {5, 0});
  Guarded table(DType::i32, {2, 3});
  for (std::int64_t i = 0; i < 6; ++i) table.set(i, static_cast<double>(10 + i));
  const auto batch = PackedBatch::paged(cu.view(), lengths.view(), table.view());
  EXPECT_TRUE(batch.is_paged());
  EXPECT_THAT(sequences(batch), ElementsAre(Sequence{0, 1, 0, 5}, Sequence{1, 2, 0, 0}));
  EXPECT_EQ(batch.block_table(0)[1], 11);
  EXPECT_EQ(batch.block_table(1)[0], 13);
}

TEST(PackedBatch, MaxSeqlenMayBeLarger) {
  const Guarded lengths = integers(DType::i32, {2, 5});
  const BatchSpec spec{.lengths_q = lengths.view(), .max_seqlen_q = 7};
  EXPECT_THAT(check_batch(spec), IsEmpty());
  EXPECT_EQ(PackedBatch(spec).max_seqlen_q(), 5) << "derived from the lengths, not from the limit";
}

TEST(PackedBatch, RunningEndsSkipEmptySequences) {
  const Ends q{3, 0, 2, 0}, k{0, 4, 1, 0};
  const auto batch = PackedBatch::from_lengths(q, k);
  EXPECT_THAT(batch.actual_seq_lengths_q(), ElementsAre(3, 5));
  EXPECT_THAT(batch.actual_seq_lengths_kv(), ElementsAre(4, 5));
  EXPECT_THAT(PackedBatch::from_lengths({}).actual_seq_lengths_q(), IsEmpty());
}

TEST(PackedBatch, CopiesShareOneState) {
  const Ends q{3, 2};
  const auto batch = PackedBatch::from_lengths(q);
  const PackedBatch copy = batch;  // NOLINT: the copy is what is tested
  EXPECT_EQ(&copy.state(), &batch.state());
}

}  // namespace
}  // namespace packattn::test
