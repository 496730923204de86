// SPDX-License-Identifier: Apache-2.0
#include "packattn/tensor.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace packattn {

TensorView::TensorView(void* data, DType dtype, Device device, Dims shape, Dims strides,
                       bool read_only)
    : data_(data),
      dtype_(dtype),
      read_only_(read_only),
      device_(device),
      rank_(static_cast<int>(shape.size())) {
  const std::size_t kept = std::min<std::size_t>(shape.size(), max_rank);
  std::copy_n(shape.begin(), kept, shape_.begin());
  if (!strides.empty()) {
    std::copy_n(strides.begin(), kept, strides_.begin());
    return;
  }
  std::int64_t stride = 1;
  for (std::size_t dim = kept; dim-- > 0;) {
    strides_[dim] = stride;
    // Wraps instead of overflowing for absurd shapes, which the checks refuse later.
    stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                       static_cast<std::uint64_t>(shape_[dim]));
  }
}

std::int64_t TensorView::numel() const {
  std::int64_t count = 1;
  for (int dim = 0; dim < std::min(rank_, max_rank); ++dim) {
    if (__builtin_mul_overflow(count, size(dim), &count)) return INT64_MAX;
  }
  return count;
}

std::string TensorView::shape_string() const {
  const auto kept = static_cast<std::size_t>(std::min(rank_, max_rank));
  return fmt::format("[{}{}]", fmt::join(Dims(shape_.data(), kept), ", "),
                     rank_ > max_rank ? ", ..." : "");
}

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::none: return "none";
    case DType::boolean: return "bool";
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
    case DType::i16: return "int16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::f8: return "fp8";
    case DType::f16: return "fp16";
    case DType::bf16: return "bf16";
    case DType::f32: return "fp32";
    case DType::f64: return "fp64";
    case DType::other: break;
  }
  return "an unknown dtype";
}

std::string to_string(Device device) {
  switch (device.type) {
    case DeviceType::cpu: return "cpu";
    case DeviceType::cuda: return fmt::format("cuda:{}", device.index);
    case DeviceType::cuda_host: return "pinned host memory";
    case DeviceType::cuda_managed:
      return fmt::format("cuda managed memory of cuda:{}", device.index);
  }
  return fmt::format("a device of DLPack type {}, index {}", static_cast<int>(device.type),
                     device.index);
}

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::u8:
    case DType::i8:
    case DType::f8: return 1;
    case DType::i16:
    case DType::f16:
    case DType::bf16: return 2;
    case DType::i32:
    case DType::f32: return 4;
    case DType::i64:
    case DType::f64: return 8;
    case DType::none:
    case DType::other: break;
  }
  return 0;
}

namespace detail {

DType dtype_from_dlpack(unsigned code, unsigned bits, unsigned lanes) {
  if (lanes != 1) return DType::other;
  // DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 7 to 14 the fp8 formats.
  switch (code) {
    case 0:
      if (bits == 8) return DType::i8;
      if (bits == 16) return DType::i16;
      if (bits == 32) return DType::i32;
      if (bits == 64) return DType::i64;
      break;
    case 1:
      if (bits == 8) return DType::u8;
      break;
    case 2:
      if (bits == 16) return DType::f16;
      if (bits == 32) return DType::f32;
      if (bits == 64) return DType::f64;
      break;
    case 4:
      if (bits == 16) return DType::bf16;
      break;
    case 6:
      if (bits == 8) return DType::boolean;
      break;
    default:
      if (code >= 7 && code <= 14 && bits == 8) return DType::f8;
  }
  return DType::other;
}

}  // namespace detail
}  // namespace packattn
