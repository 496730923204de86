// SPDX-License-Identifier: Apache-2.0
#include "packattn/tensor.h"

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace packattn {
namespace {

// The fields of DLPack's DLTensor, under its names.
struct DLDevice { std::int32_t device_type, device_id; };
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

TEST(TensorView, DefaultIsNotGiven) {
  const TensorView none;
  EXPECT_FALSE(none.present());
  EXPECT_EQ(none.rank(), 0);
  EXPECT_EQ(none.dtype(), DType::none);
}

TEST(TensorView, ContiguousByDefault) {
  std::vector<float> data(24);
  const auto view = TensorView::of(data.data(), {2, 3, 4});
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(1), 4);
  EXPECT_EQ(view.stride(-1), 1);
  EXPECT_EQ(view.size(-2), 3);
  EXPECT_EQ(view.numel(), 24);
  EXPECT_EQ(view.shape_string(), "[2, 3, 4]");
  EXPECT_FALSE(view.read_only());
}

TEST(TensorView, ConstDataIsReadOnly) {
  const std::vector<std::int64_t> data(3);
  const auto view = TensorView::of(data);
  EXPECT_TRUE(view.read_only());
  EXPECT_EQ(view.dtype(), DType::i64);
  EXPECT_EQ(view.rank(), 1);
}

TEST(TensorView, ElementTypesOfTheLanguage) {
  std::vector<Half> half(1);
  std::vector<BFloat16> bf16(1);
  std::vector<long long> wide(1);
  std::array<bool, 1> flags{};
  EXPECT_EQ(TensorView::of(half).dtype(), DType::f16);
  EXPECT_EQ(TensorView::of(bf16).dtype(), DType::bf16);
  EXPECT_EQ(TensorView::of(wide).dtype(), DType::i64);
  EXPECT_EQ(TensorView::of(flags).dtype(), DType::boolean);
}

TEST(TensorView, FromDlpackWithOffsetAndStrides) {
  std::vector<float> data(64);
  std::array<std::int64_t, 2> shape{3, 4}, strides{16, 1};
  DLTensor t{data.data(), {1, 0}, 2, {2, 32, 1}, shape.data(), strides.data(), 8};
  const auto view = TensorView::from_dlpack(t, true);
  EXPECT_EQ(view.data(), data.data() + 2);
  EXPECT_EQ(view.stride(0), 16);
  EXPECT_EQ(view.dtype(), DType::f32);
  EXPECT_TRUE(view.read_only());
  t.strides = nullptr;
  EXPECT_EQ(TensorView::from_dlpack(t).stride(0), 4);
  t.device = {2, 3};
  EXPECT_EQ(to_string(TensorView::from_dlpack(t).device()), "cuda:3");
}

TEST(TensorView, DlpackTypes) {
  using detail::dtype_from_dlpack;
  EXPECT_EQ(dtype_from_dlpack(0, 8, 1), DType::i8);
  EXPECT_EQ(dtype_from_dlpack(0, 16, 1), DType::i16);
  EXPECT_EQ(dtype_from_dlpack(0, 32, 1), DType::i32);
  EXPECT_EQ(dtype_from_dlpack(0, 64, 1), DType::i64);
  EXPECT_EQ(dtype_from_dlpack(1, 8, 1), DType::u8);
  EXPECT_EQ(dtype_from_dlpack(2, 16, 1), DType::f16);
  EXPECT_EQ(dtype_from_dlpack(2, 32, 1), DType::f32);
  EXPECT_EQ(dtype_from_dlpack(2, 64, 1), DType::f64);
  EXPECT_EQ(dtype_from_dlpack(4, 16, 1), DType::bf16);
  EXPECT_EQ(dtype_from_dlpack(6, 8, 1), DType::boolean);
  EXPECT_EQ(dtype_from_dlpack(10, 8, 1), DType::f8);
  EXPECT_EQ(dtype_from_dlpack(2, 32, 4), DType::other);
  EXPECT_EQ(dtype_from_dlpack(5, 64, 1), DType::other);
  EXPECT_EQ(dtype_from_dlpack(0, 7, 1), DType::other);
}

TEST(TensorView, MoreDimensionsThanItKeeps) {
  std::vector<float> data(1);
  const auto view = TensorView::of(data.data(), {1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(view.rank(), 10);
  EXPECT_EQ(view.shape_string(), "[1, 1, 1, 1, 1, 1, 1, 1, ...]");
}

TEST(TensorView, AbsurdSizesSaturate) {
  const auto huge = std::numeric_limits<std::int64_t>::max() / 2;
  std::vector<float> data(1);
  const auto view = TensorView::of(data.data(), {huge, huge, 3});
  EXPECT_EQ(view.numel(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(TensorView::of(data.data(), {0, huge}).numel(), 0);
}

TEST(TensorView, DevicesInWords) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_TRUE((Device{DeviceType::cuda_host, 0}).is_host());
  EXPECT_FALSE((Device{DeviceType::cuda, 0}).is_host());
  EXPECT_EQ(to_string(Device{static_cast<DeviceType>(12), 1}),
            "a device of DLPack type 12, index 1");
}

TEST(TensorView, SizesOfTypes) {
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::f64), 8U);
  EXPECT_EQ(size_of(DType::boolean), 1U);
  EXPECT_EQ(size_of(DType::none), 0U);
  EXPECT_EQ(size_of(DType::other), 0U);
}

}  // namespace
}  // namespace packattn
