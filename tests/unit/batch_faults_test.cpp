// SPDX-License-Identifier: Apache-2.0
// Every PA2xxx code that boundaries alone can raise, with its argument, position and value.
#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packattn/packed.h"

#include "support/boundaries.h"
#include "support/faults.h"

namespace packattn::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

class BatchFaults : public testing::Test {
 protected:
  TensorView i32(const std::vector<std::int64_t>& values) {
    return keep(integers(DType::i32, values));
  }
  TensorView i64(const std::vector<std::int64_t>& values) {
    return keep(integers(DType::i64, values));
  }
  TensorView keep(Guarded tensor) {
    kept_.push_back(std::move(tensor));
    return kept_.back().view();
  }
  static TensorView on_cuda(const TensorView& t, int index = 0) {
    std::vector<std::int64_t> sizes;
    for (int dim = 0; dim < t.rank(); ++dim) sizes.push_back(t.size(dim));
    return {reinterpret_cast<void*>(64), t.dtype(), {DeviceType::cuda, index}, sizes};
  }
  std::vector<Guarded> kept_ = [] {
    std::vector<Guarded> v;
    v.reserve(16);  // views stay valid
    return v;
  }();
};

TEST_F(BatchFaults, Missing) {
  EXPECT_THAT(check_batch({}),
              ElementsAre(IsFault(Code::boundaries_missing, "cu_seqlens_q", "", "")));
  EXPECT_THAT(check_batch({.cu_seqlens_k = i32({0, 1})}),
              testing::Contains(IsFault(Code::boundaries_missing, "cu_seqlens_q", "", "")));
  EXPECT_THAT(check_batch({.starts_q = i32({0})}),
              ElementsAre(IsFault(Code::boundaries_missing, "lengths_q", "", "")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 1}), .host_k = i32({0, 1})}),
              ElementsAre(IsFault(Code::boundaries_missing, "cu_seqlens_k", "", "")));
}

TEST_F(BatchFaults, RankAndDtypeBothAtOnce) {
  EXPECT_THAT(check_batch({.cu_seqlens_q = keep(Guarded(DType::f32, {1, 3}))}),
              ElementsAre(IsFault(Code::boundaries_rank, "cu_seqlens_q", "", "2"),
                          IsFault(Code::boundaries_dtype, "cu_seqlens_q", "", "fp32")));
  EXPECT_THAT(
      check_batch({.cu_seqlens_q = i32({0, 1}), .cu_seqlens_k = keep(Guarded(DType::i16, {2}))}),
      ElementsAre(IsFault(Code::boundaries_dtype, "cu_seqlens_k", "", "int16")));
}

TEST_F(BatchFaults, Empty) {
  EXPECT_THAT(check_batch({.cu_seqlens_q = keep(Guarded(DType::i32, {0}))}),
              ElementsAre(IsFault(Code::boundaries_empty, "cu_seqlens_q", "", "")));
}

TEST_F(BatchFaults, Start) {
  const auto faults = check_batch({.cu_seqlens_q = i32({1, 2})});
  EXPECT_THAT(faults, ElementsAre(IsFault(Code::boundaries_start, "cu_seqlens_q", "index 0", "1")));
  EXPECT_EQ(faults[0].message, "cu_seqlens_q starts at 1, but has to start at 0");
}

TEST_F(BatchFaults, Decrease) {
  const auto faults = check_batch({.cu_seqlens_q = i32({0, 2, 1, 2})});
  EXPECT_THAT(faults, ElementsAre(IsFault(Code::boundaries_decrease, "cu_seqlens_q", "index 2",
                                          "2 then 1")));
  EXPECT_EQ(faults[0].message, "cu_seqlens_q decreases at index 2: 2 then 1");
  EXPECT_THAT(check_batch({.cu_seqlens_q = i64({0, most, -most, 4})}),
              testing::Contains(IsFault(Code::boundaries_decrease, "cu_seqlens_q", "index 2",
                                        std::to_string(most) + " then -" + std::to_string(most))));
}

TEST_F(BatchFaults, StartAndDecreaseOfBothSidesAtOnce) {
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({3, 2}), .cu_seqlens_k = i32({1, 4})}),
              ElementsAre(IsFault(Code::boundaries_start, "cu_seqlens_q", "index 0", "3"),
                          IsFault(Code::boundaries_decrease, "cu_seqlens_q", "index 1", "3 then 2"),
                          IsFault(Code::boundaries_start, "cu_seqlens_k", "index 0", "1")));
}

TEST_F(BatchFaults, BatchSizes) {
  const auto faults =
      check_batch({.cu_seqlens_q = i32({0, 5, 12, 15}), .cu_seqlens_k = i32({0, 9, 21})});
  EXPECT_THAT(faults,
              ElementsAre(IsFault(Code::batch_size_mismatch, "cu_seqlens_q", "cu_seqlens_k", "3")));
  EXPECT_EQ(faults[0].limit, "2");
  EXPECT_THAT(check_batch({.lengths_q = i32({1, 2}), .starts_q = i32({0})}),
              ElementsAre(IsFault(Code::batch_size_mismatch, "starts_q", "lengths_q", "1")));
}

TEST_F(BatchFaults, HostCopies) {
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 5, 9}), .host_q = i32({0, 5})}),
              ElementsAre(IsFault(Code::host_copy_length, "host_q", "cu_seqlens_q", "2")));
  const auto faults = check_batch({.cu_seqlens_q = i32({0, 5, 9}), .host_q = i32({0, 4, 9})});
  EXPECT_THAT(faults, ElementsAre(IsFault(Code::host_copy_values, "host_q", "index 1", "4")));
  EXPECT_EQ(faults[0].limit, "5");
  EXPECT_THAT(check_batch({.cu_seqlens_q = on_cuda(i32({0, 5, 9})), .host_q = i32({0, 7, 3})}),
              ElementsAre(IsFault(Code::boundaries_decrease, "host_q", "index 2", "7 then 3")));
}

TEST_F(BatchFaults, MaxSeqlen) {
  const auto faults = check_batch({.lengths_q = i32({2, 5}), .max_seqlen_q = 2});
  EXPECT_THAT(faults,
              ElementsAre(IsFault(Code::max_seqlen_small, "max_seqlen_q", "sequence 1", "2")));
  EXPECT_EQ(faults[0].limit, "5");
  EXPECT_THAT(check_batch({.lengths_q = i32({2}), .lengths_k = i32({6}), .max_seqlen_k = 0}),
              ElementsAre(IsFault(Code::max_seqlen_small, "max_seqlen_k", "sequence 0", "0")));
}

TEST_F(BatchFaults, TwoSourcesOfTruth) {
  const auto mask = keep(padding_mask({2}));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 2}), .padding_mask_q = mask}),
              ElementsAre(IsFault(Code::sources_conflict, "padding_mask_q", "", "cu_seqlens_q")));
  EXPECT_THAT(check_batch({.lengths_q = i32({2}), .padding_mask_q = mask}),
              ElementsAre(IsFault(Code::sources_conflict, "padding_mask_q", "", "lengths_q")));
  EXPECT_THAT(check_batch({.lengths_q = i32({2}), .position_ids = i64({0, 1})}),
              ElementsAre(IsFault(Code::sources_conflict, "position_ids", "", "lengths_q")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 2}),
                           .cu_seqlens_k = i32({0, 2}),
                           .seqlens_k = i32({2}),
                           .block_table = keep(Guarded(DType::i32, {1, 1}))}),
              ElementsAre(IsFault(Code::sources_conflict, "seqlens_k", "", "cu_seqlens_k")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 2}),
                           .lengths_k = i32({2}),
                           .seqlens_k = i32({2}),
                           .block_table = keep(Guarded(DType::i32, {1, 1}))}),
              ElementsAre(IsFault(Code::sources_conflict, "seqlens_k", "", "lengths_k")));
}

TEST_F(BatchFaults, AHostCopyNeedsItsOriginal) {
  EXPECT_THAT(check_batch({.host_q = i32({0, 2}), .lengths_q = i32({2})}),
              ElementsAre(IsFault(Code::boundaries_missing, "cu_seqlens_q", "", "")));
  EXPECT_THAT(check_batch({.host_k = i32({0, 2}), .lengths_q = i32({2}), .lengths_k = i32({2})}),
              ElementsAre(IsFault(Code::boundaries_missing, "cu_seqlens_k", "", "")));
}

TEST_F(BatchFaults, GapsBesideCuSeqlens) {
  const auto faults = check_batch({.cu_seqlens_q = i32({0, 4, 8}), .lengths_q = i32({3, 2})});
  EXPECT_THAT(faults, ElementsAre(IsFault(Code::boundaries_gap, "cu_seqlens_q", "sequence 0",
                                          "it spans 4 rows, but lengths_q says 3")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 3, 5}), .lengths_q = i32({3, 2})}), IsEmpty());
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 3, 5}), .lengths_q = i32({3})}),
              ElementsAre(IsFault(Code::batch_size_mismatch, "cu_seqlens_q", "lengths_q", "2")));
}

TEST_F(BatchFaults, NegativeLengthsEachByIndex) {
  EXPECT_THAT(check_batch({.lengths_q = i32({1, -2, 3, -4})}),
              ElementsAre(IsFault(Code::length_negative, "lengths_q", "index 1", "-2"),
                          IsFault(Code::length_negative, "lengths_q", "index 3", "-4")));
  EXPECT_THAT(check_batch({.lengths_q = i32({1}), .starts_q = i32({-1})}),
              ElementsAre(IsFault(Code::length_negative, "starts_q", "index 0", "-1")));
}

TEST_F(BatchFaults, QueryRangesMustNotOverlap) {
  EXPECT_THAT(check_batch({.lengths_q = i32({4, 3}), .starts_q = i32({2, 0})}),
              ElementsAre(IsFault(Code::ranges_overlap, "starts_q", "sequence 0",
                                  "row 2 belongs to sequence 1 already")));
}

TEST_F(BatchFaults, Overflow) {
  const auto faults = check_batch({.lengths_q = i64({most, most})});
  EXPECT_THAT(faults, ElementsAre(IsFault(Code::lengths_overflow, "lengths_q", "sequence 1", "")));
  EXPECT_THAT(faults[0].message, HasSubstr("2^63 - 1"));
  EXPECT_THAT(check_batch({.lengths_q = i64({1}), .starts_q = i64({most})}),
              ElementsAre(IsFault(Code::lengths_overflow, "starts_q", "sequence 0", "")));
}

TEST_F(BatchFaults, PositionIds) {
  EXPECT_THAT(check_batch({.position_ids = i64({0, 1, 3})}),
              ElementsAre(IsFault(Code::position_ids_jump, "position_ids", "index 2", "1 then 3")));
  EXPECT_THAT(
      check_batch({.position_ids = i64({1, 2})}),
      ElementsAre(IsFault(Code::position_ids_jump, "position_ids", "index 0", "it starts at 1")));
  EXPECT_THAT(check_batch({.position_ids = keep(Guarded(DType::i32, {2, 3}))}),
              ElementsAre(IsFault(Code::boundaries_rank, "position_ids", "", "2")));
}

TEST_F(BatchFaults, PaddingMask) {
  EXPECT_THAT(check_batch({.padding_mask_q = keep(Guarded(DType::f32, {2, 3}))}),
              ElementsAre(IsFault(Code::tensor_dtype, "padding_mask_q", "", "fp32")));
  EXPECT_THAT(check_batch({.padding_mask_q = keep(Guarded(DType::boolean, {6}))}),
              ElementsAre(IsFault(Code::tensor_rank, "padding_mask_q", "", "1")));
}

TEST_F(BatchFaults, Pages) {
  const auto table = keep(Guarded(DType::i32, {3, 1}));
  EXPECT_THAT(
      check_batch({.cu_seqlens_q = i32({0, 1, 2}), .seqlens_k = i32({1, 1}), .block_table = table}),
      ElementsAre(IsFault(Code::batch_size_mismatch, "block_table", "seqlens_k", "3")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 1}), .block_table = table}),
              testing::Contains(IsFault(Code::boundaries_missing, "seqlens_k", "", "")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 1}), .seqlens_k = i32({1})}),
              ElementsAre(IsFault(Code::tensor_missing, "block_table", "", "")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 1}),
                           .seqlens_k = i32({1}),
                           .block_table = keep(Guarded(DType::i64, {1, 1}))}),
              ElementsAre(IsFault(Code::tensor_dtype, "block_table", "", "int64")));
}

TEST_F(BatchFaults, OnADeviceWhereValuesAreNeeded) {
  EXPECT_THAT(check_batch({.lengths_q = on_cuda(i32({2}))}),
              ElementsAre(IsFault(Code::boundaries_on_device, "lengths_q", "this form of the batch",
                                  "cuda:0")));
}

TEST_F(BatchFaults, WhatOnlyADeviceHasLiesOnOneDevice) {
  const auto ends = on_cuda(i32({0, 2}));
  EXPECT_THAT(check_batch({.cu_seqlens_q = ends, .cu_seqlens_k = on_cuda(i32({0, 2}))}),
              testing::IsEmpty());
  EXPECT_THAT(check_batch({.cu_seqlens_q = ends, .cu_seqlens_k = i32({0, 2})}),
              ElementsAre(IsFault(Code::tensor_device, "cu_seqlens_k", "cu_seqlens_q", "cpu")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 2}), .cu_seqlens_k = ends}),
              ElementsAre(IsFault(Code::tensor_device, "cu_seqlens_q", "cu_seqlens_k", "cpu")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = ends, .cu_seqlens_k = on_cuda(i32({0, 2}), 1)}),
              ElementsAre(IsFault(Code::tensor_device, "cu_seqlens_k", "cu_seqlens_q", "cuda:1")));
  EXPECT_THAT(check_batch({.lengths_q = i32({2}),
                           .seqlens_k = on_cuda(i32({2})),
                           .block_table = on_cuda(keep(Guarded(DType::i32, {1, 1})))}),
              ElementsAre(IsFault(Code::tensor_device, "lengths_q", "seqlens_k", "cpu")));
  // With a copy on the host nothing is read there.
  EXPECT_THAT(
      check_batch({.cu_seqlens_q = ends, .cu_seqlens_k = i32({0, 2}), .host_q = i32({0, 2})}),
      testing::IsEmpty());
}

TEST_F(BatchFaults, GapsNeedTheHost) {
  EXPECT_THAT(check_batch({.cu_seqlens_q = on_cuda(i32({0, 2})), .lengths_q = on_cuda(i32({1}))}),
              ElementsAre(IsFault(Code::boundaries_on_device, "cu_seqlens_q",
                                  "the form with lengths beside it", "cuda:0")));
}

TEST_F(BatchFaults, NegativeSizes) {
  const std::int64_t size = -1;
  const TensorView ends{reinterpret_cast<void*>(64), DType::i32, {}, {&size, 1}};
  EXPECT_THAT(check_batch({.cu_seqlens_q = ends}),
              ElementsAre(IsFault(Code::negative_size, "cu_seqlens_q", "dimension 0", "-1")));
  EXPECT_THAT(check_batch({.lengths_q = ends}),
              ElementsAre(IsFault(Code::negative_size, "lengths_q", "dimension 0", "-1")));
  EXPECT_THAT(check_batch({.cu_seqlens_q = i32({0, 1}), .host_q = ends}),
              ElementsAre(IsFault(Code::negative_size, "host_q", "dimension 0", "-1")));
}

TEST_F(BatchFaults, TheConstructorThrowsThemAll) {
  const auto faults = faults_of([&] { PackedBatch(BatchSpec{.cu_seqlens_q = i32({3, 2})}); });
  EXPECT_THAT(faults, ElementsAre(IsFault(Code::boundaries_start, "cu_seqlens_q", "index 0", "3"),
                                  IsFault(Code::boundaries_decrease, "cu_seqlens_q", "index 1",
                                          "3 then 2")));
}

}  // namespace
}  // namespace packattn::test
