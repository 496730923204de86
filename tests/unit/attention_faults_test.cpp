// SPDX-License-Identifier: Apache-2.0
// Every fault of an attention call's tensors and options, with argument, position and value.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packattn/attention.h"

#include "support/boundaries.h"
#include "support/faults.h"

namespace packattn::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A legal call of two sequences, 5 queries and 7 keys, to be spoilt.
class AttentionFaults : public testing::Test {
 protected:
  Guarded q_{DType::f32, {5, 4, 64}}, k_{DType::f32, {7, 2, 64}}, v_{DType::f32, {7, 2, 32}};
  Guarded out_{DType::f32, {5, 4, 32}}, lse_{DType::f32, {4, 5}};
  Guarded cu_q_ = integers(DType::i32, {0, 2, 5}), cu_k_ = integers(DType::i32, {0, 4, 7});
  AttentionArgs args{
      .q = q_.view(), .k = k_.view(), .v = v_.view(), .out = out_.view(), .lse = lse_.view()};
  BatchSpec spec{.cu_seqlens_q = cu_q_.view(), .cu_seqlens_k = cu_k_.view()};
  AttentionOptions options;
  Context context;

  std::vector<Fault> faults() const { return check_attention(args, spec, options, context); }
  static TensorView with_shape(const TensorView& t, std::vector<std::int64_t> shape) {
    return {t.data(), t.dtype(), t.device(), shape};
  }
  static TensorView with_dtype(const TensorView& t, DType dtype) {
    std::vector<std::int64_t> shape;
    for (int d = 0; d < t.rank(); ++d) shape.push_back(t.size(d));
    return {t.data(), dtype, t.device(), shape};
  }
  static TensorView with_device(const TensorView& t, Device device) {
    std::vector<std::int64_t> shape;
    for (int d = 0; d < t.rank(); ++d) shape.push_back(t.size(d));
    return {t.data(), t.dtype(), device, shape};
  }
  static TensorView with_strides(const TensorView& t, std::vector<std::int64_t> strides) {
    std::vector<std::int64_t> shape;
    for (int d = 0; d < t.rank(); ++d) shape.push_back(t.size(d));
    return {t.data(), t.dtype(), t.device(), shape, strides};
  }
  static TensorView moved(const TensorView& t, std::ptrdiff_t bytes) {
    std::vector<std::int64_t> shape;
    for (int d = 0; d < t.rank(); ++d) shape.push_back(t.size(d));
    return {t.as<std::byte>() + bytes, t.dtype(), t.device(), shape};
  }
};

TEST_F(AttentionFaults, TheCallIsLegal) { EXPECT_THAT(faults(), IsEmpty()); }

TEST_F(AttentionFaults, MissingTensors) {
  args = {};
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::tensor_missing, "q", "", ""),
                                    IsFault(Code::tensor_missing, "k", "", ""),
                                    IsFault(Code::tensor_missing, "v", "", ""),
                                    IsFault(Code::tensor_missing, "out", "", "")));
}

TEST_F(AttentionFaults, EveryWrongRankIsNamed) {
  for (const int rank : {0, 1, 2, 4, 5, 9}) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(rank), 1);
    args.q = with_shape(q_.view(), shape);
    args.v = with_shape(v_.view(), shape);
    const auto all = faults();
    EXPECT_THAT(all, Contains(IsFault(Code::tensor_rank, "q", "", std::to_string(rank))));
    EXPECT_THAT(all, Contains(IsFault(Code::tensor_rank, "v", "", std::to_string(rank))));
    EXPECT_EQ(all.size(), 2U);
  }
}

TEST_F(AttentionFaults, APaddedBatchIsSentToPack) {
  args.q = with_shape(q_.view(), {1, 5, 4, 64});
  const auto all = faults();
  ASSERT_THAT(all, ElementsAre(IsFault(Code::tensor_rank, "q", "", "4")));
  EXPECT_THAT(all[0].note, HasSubstr("packattn::pack"));
}

TEST_F(AttentionFaults, Devices) {
  args.k = with_device(k_.view(), {DeviceType::cuda, 1});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::tensor_device, "k", "q", "cuda:1")));
  args.q = with_device(q_.view(), {static_cast<DeviceType>(12), 0});
  EXPECT_THAT(faults(), Contains(IsFault(Code::device_unsupported, "q", "",
                                         "a device of DLPack type 12, index 0")));
}

TEST_F(AttentionFaults, MixedDtypes) {
  args.k = with_dtype(k_.view(), DType::f16);
  args.v = with_dtype(v_.view(), DType::bf16);
  const auto all = faults();
  ASSERT_THAT(all, ElementsAre(IsFault(Code::tensor_dtype_mismatch, "k", "q", "fp16"),
                               IsFault(Code::tensor_dtype_mismatch, "v", "q", "bf16")));
  EXPECT_EQ(all[0].message, "k is fp16, but q is fp32");
}

TEST_F(AttentionFaults, Dtypes) {
  for (const DType dtype : {DType::f64, DType::i32, DType::f8, DType::other}) {
    args.q = with_dtype(q_.view(), dtype);
    args.k = with_dtype(k_.view(), dtype);
    args.v = with_dtype(v_.view(), dtype);
    EXPECT_THAT(faults(), Contains(IsFault(Code::tensor_dtype, "q", "", to_string(dtype))));
  }
  args = {.q = q_.view(), .k = k_.view(), .v = v_.view()};
  args.out = with_dtype(out_.view(), DType::bf16);
  args.lse = with_dtype(lse_.view(), DType::f16);
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::tensor_dtype, "out", "", "bf16"),
                                    IsFault(Code::tensor_dtype, "lse", "", "fp16")));
}

TEST_F(AttentionFaults, SizesThatDoNotMatchAllAtOnce) {
  args.k = with_shape(k_.view(), {7, 2, 32});
  args.v = with_shape(v_.view(), {6, 1, 32});
  const auto all = faults();
  EXPECT_THAT(all, ElementsAre(IsFault(Code::head_size_mismatch, "k", "q", "32"),
                               IsFault(Code::heads_mismatch, "v", "k", "1"),
                               IsFault(Code::tokens_mismatch, "v", "k", "6")));
  EXPECT_EQ(all[0].limit, "64");
}

TEST_F(AttentionFaults, HeadsRatio) {
  args.k = with_shape(k_.view(), {7, 3, 64});
  args.v = with_shape(v_.view(), {7, 3, 32});
  const auto all = faults();
  ASSERT_THAT(all, ElementsAre(IsFault(Code::heads_ratio, "q", "k", "4")));
  EXPECT_EQ(all[0].limit, "3");
}

TEST_F(AttentionFaults, OutputShapes) {
  args.out = with_shape(out_.view(), {5, 32, 4});
  args.lse = with_shape(lse_.view(), {5, 4});
  const auto all = faults();
  ASSERT_THAT(all, ElementsAre(IsFault(Code::tensor_shape, "out", "", "[5, 32, 4]"),
                               IsFault(Code::tensor_shape, "lse", "", "[5, 4]")));
  EXPECT_EQ(all[0].limit, "[5, 4, 32]");
}

TEST_F(AttentionFaults, Strides) {
  args.q = with_strides(q_.view(), {4, 1, 4});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::last_stride, "q", "", "4")));
  args.q = with_strides(q_.view(), {0, 64, 1});  // one row repeated is fine for an input
  EXPECT_THAT(faults(), IsEmpty());
  args.out = with_strides(out_.view(), {0, 32, 1});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::outputs_overlap, "out", "", "itself")));
  args.out = with_strides(out_.view(), {127, 32, 1});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::outputs_overlap, "out", "", "itself")));
}

TEST_F(AttentionFaults, ZeroSizes) {
  args.q = with_shape(q_.view(), {5, 4, 0});
  args.k = with_shape(k_.view(), {7, 0, 0});
  args.v = with_shape(v_.view(), {7, 0, 0});
  EXPECT_THAT(faults(),
              testing::IsSupersetOf({IsFault(Code::zero_size, "q", "its head size", ""),
                                     IsFault(Code::zero_size, "k", "its heads", ""),
                                     IsFault(Code::zero_size, "v", "its head size", "")}));
}

TEST_F(AttentionFaults, NegativeSizes) {
  args.q = with_shape(q_.view(), {-5, 4, 64});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::negative_size, "q", "dimension 0", "-5")));
}

TEST_F(AttentionFaults, NullAndMisalignedData) {
  args.q = {nullptr, DType::f32, {}, std::vector<std::int64_t>{5, 4, 64}};
  args.k = moved(k_.view(), 2);
  const auto all = faults();
  EXPECT_THAT(all, ElementsAre(IsFault(Code::null_data, "q", "", "1280"),
                               IsFault(Code::misaligned, "k", "", "2")));
}

TEST_F(AttentionFaults, ReadOnlyOutputs) {
  args.out = out_.view(true);
  args.lse = lse_.view(true);
  args.q = q_.view(true);  // inputs may be
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::read_only_output, "out", "", ""),
                                    IsFault(Code::read_only_output, "lse", "", "")));
}

TEST_F(AttentionFaults, OutputsThatShareMemory) {
  args.out = with_shape(q_.view(), {5, 4, 32});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::outputs_overlap, "out", "", "q")));
  args.out = out_.view();
  args.lse = with_shape(out_.view(), {4, 5});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::outputs_overlap, "lse", "", "out")));
}

TEST_F(AttentionFaults, Options) {
  const double nan = std::nan("");
  const double infinite = std::numeric_limits<double>::infinity();
  for (const auto& [bad, text] : {std::pair{nan, "nan"}, std::pair{infinite, "inf"}}) {
    options = {.softmax_scale = bad, .softcap = bad};
    EXPECT_THAT(faults(), ElementsAre(IsFault(Code::scale_invalid, "softmax_scale", "", text),
                                      IsFault(Code::softcap_invalid, "softcap", "", text)));
  }
  options = {.window = {.left = -1, .right = -2}, .softcap = -3};
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::softcap_invalid, "softcap", "", "-3"),
                                    IsFault(Code::window_negative, "window.left", "", "-1"),
                                    IsFault(Code::window_negative, "window.right", "", "-2")));
}

// A double that is finite can still be inf or 0 in the arithmetic, which is fp32.
TEST_F(AttentionFaults, OptionsBeyondTheArithmetic) {
  for (const double bad : {1e39, -1e39}) {
    options = {.softmax_scale = bad};
    EXPECT_THAT(faults(), ElementsAre(testing::Field(&Fault::code, Code::scale_invalid))) << bad;
  }
  for (const double bad : {1e39, 1e-39, 1e-300}) {
    options = {.softcap = bad};
    EXPECT_THAT(faults(), ElementsAre(testing::Field(&Fault::code, Code::softcap_invalid))) << bad;
  }
  options = {.softmax_scale = 3e38, .softcap = 2e-38};
  EXPECT_THAT(faults(), IsEmpty());
  options = {.softmax_scale = 1e-300, .softcap = 3e38};
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(AttentionFaults, LatentAttentionNeedsItsScale) {
  Guarded q(DType::f32, {5, 4, 576}), k(DType::f32, {7, 1, 576}), v(DType::f32, {7, 1, 512});
  Guarded out(DType::f32, {5, 4, 512});
  args = {.q = q.view(), .k = k.view(), .v = v.view(), .out = out.view()};
  EXPECT_THAT(faults(),
              ElementsAre(IsFault(Code::scale_invalid, "softmax_scale", "", "not given")));
  options.softmax_scale = 0.07;
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(AttentionFaults, SlopesAndSinks) {
  Guarded bad(DType::f32, {3}), half(DType::f16, {4}), rows(DType::f32, {3, 4});
  options = {.alibi_slopes = bad.view(), .sinks = half.view()};
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::tensor_shape, "alibi_slopes", "", "[3]"),
                                    IsFault(Code::tensor_dtype, "sinks", "", "fp16")));
  options = {.alibi_slopes = rows.view(), .sinks = rows.view()};
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::tensor_shape, "alibi_slopes", "", "[3, 4]"),
                                    IsFault(Code::tensor_rank, "sinks", "", "2")));
}

TEST_F(AttentionFaults, BoundariesThatDoNotFitTheTensors) {
  Guarded long_q = integers(DType::i32, {0, 2, 9}), short_k = integers(DType::i32, {0, 4, 6});
  spec = {.cu_seqlens_q = long_q.view(), .cu_seqlens_k = short_k.view()};
  const auto all = faults();
  ASSERT_THAT(all, ElementsAre(IsFault(Code::boundaries_end, "cu_seqlens_q", "q", "9"),
                               IsFault(Code::rows_after_end, "cu_seqlens_k", "k", "6")));
  EXPECT_EQ(all[0].message, "cu_seqlens_q ends at 9, past the 5 rows of q");
  spec.capacity = true;
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::boundaries_end, "cu_seqlens_q", "q", "9")));
}

TEST_F(AttentionFaults, RangesPastTheEnd) {
  Guarded starts = integers(DType::i64, {0, 3}), lengths = integers(DType::i64, {2, 3});
  spec = {.cu_seqlens_k = cu_k_.view(), .lengths_q = lengths.view(), .starts_q = starts.view()};
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::range_past_end, "starts_q", "sequence 1", "5")));
}

TEST_F(AttentionFaults, Pages) {
  Guarded lengths = integers(DType::i32, {4, 3}), table = Guarded(DType::i32, {2, 2});
  for (std::int64_t i = 0; i < 4; ++i) table.set(i, static_cast<double>(i));
  spec = {.cu_seqlens_q = cu_q_.view(), .seqlens_k = lengths.view(), .block_table = table.view()};
  EXPECT_THAT(faults(), Contains(IsFault(Code::key_rows_unused, "the batch", "k", "3")));
  Guarded k(DType::f32, {3, 2, 2, 64}), v(DType::f32, {3, 2, 2, 32});
  args.k = k.view();
  args.v = v.view();
  auto all = faults();
  ASSERT_THAT(all, ElementsAre(IsFault(Code::block_table_entry, "block_table", "[1, 1]", "3")));
  EXPECT_EQ(all[0].limit, "pages 0 to 2");
  Guarded longer = integers(DType::i32, {5, 2});
  spec.seqlens_k = longer.view();
  EXPECT_THAT(faults(),
              ElementsAre(IsFault(Code::block_table_short, "block_table", "sequence 0", "2")));
}

TEST_F(AttentionFaults, BoundariesOnADevice) {
  const std::int64_t size = 3;
  spec = {
      .cu_seqlens_q = {reinterpret_cast<void*>(64), DType::i32, {DeviceType::cuda, 0}, {&size, 1}}};
  args.k = with_shape(k_.view(), {5, 2, 64});
  args.v = with_shape(v_.view(), {5, 2, 32});
  EXPECT_THAT(faults(), ElementsAre(IsFault(Code::boundaries_on_device, "cu_seqlens_q",
                                            "a call on the CPU", "cuda:0")));
  spec.host_q = cu_q_.view();
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(AttentionFaults, BoundariesBesideTensorsOnAGpu) {
  // Checking a call meant for a GPU needs none, and reads nothing at its addresses.
  const Device gpu{DeviceType::cuda, 0};
  for (TensorView* t : {&args.q, &args.k, &args.v, &args.out, &args.lse}) {
    *t = with_device(*t, gpu);
  }
  EXPECT_THAT(faults(), IsEmpty()) << "host boundaries are taken as they are";
  const std::int64_t size = 3;
  const TensorView elsewhere(reinterpret_cast<void*>(64), DType::i32, {DeviceType::cuda, 1},
                             {&size, 1});
  spec = {.cu_seqlens_q = elsewhere, .cu_seqlens_k = elsewhere};
  EXPECT_THAT(faults(), Contains(IsFault(Code::boundaries_device, "cu_seqlens_q", "", "cuda:1")));
}

TEST_F(AttentionFaults, FaultsOfBoundariesTensorsAndOptionsInOneList) {
  Guarded bad = integers(DType::i32, {1, 0, 5});
  spec.cu_seqlens_q = bad.view();
  args.k = with_dtype(k_.view(), DType::f16);
  options.softcap = -1;
  context.threads = -2;
  context.implementation = "cpu/nothing";
  const auto expected = testing::UnorderedElementsAre(
      IsFault(Code::boundaries_start, "cu_seqlens_q", "index 0", "1"),
      IsFault(Code::boundaries_decrease, "cu_seqlens_q", "index 1", "1 then 0"),
      IsFault(Code::tensor_dtype_mismatch, "k", "q", "fp16"),
      IsFault(Code::softcap_invalid, "softcap", "", "-1"),
      IsFault(Code::threads_invalid, "threads", "", "-2"),
      IsFault(Code::implementation_unknown, "attention", "", "\"cpu/nothing\""));
  EXPECT_THAT(faults(), expected);
  EXPECT_THAT(faults_of([&] { attention(args, spec, options, context); }), expected);
}

TEST_F(AttentionFaults, ARefusedCallWritesNothing) {
  options.softcap = -1;
  faults_of([&] { attention(args, spec, options); });
  EXPECT_EQ(out_.unwritten(), out_.numel());
  EXPECT_EQ(lse_.unwritten(), lse_.numel());
}

}  // namespace
}  // namespace packattn::test
