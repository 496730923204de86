// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "packattn/export.h"

namespace packattn {

/// Element types a view can carry. Operations accept a subset and refuse the rest by name.
enum class DType : std::uint8_t {
  none,
  boolean,
  u8,
  i8,
  i16,
  i32,
  i64,
  f8,
  f16,
  bf16,
  f32,
  f64,
  other,
};

/// IEEE half precision and bfloat16 as stored bits.
struct Half { std::uint16_t bits; };
struct BFloat16 { std::uint16_t bits; };

/// Device kinds under their DLPack numbers; any other DLPack number is kept as it is.
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;

  /// Memory that the host can read: CPU memory and pinned CUDA host memory.
  bool is_host() const { return type == DeviceType::cpu || type == DeviceType::cuda_host; }
  friend bool operator==(const Device&, const Device&) = default;
};

PACKATTN_EXPORT std::string to_string(DType dtype);    // "bf16"
PACKATTN_EXPORT std::string to_string(Device device);  // "cpu", "cuda:0"
PACKATTN_EXPORT std::size_t size_of(DType dtype);      // bytes of one element, 0 for none and other

namespace detail {
template <class T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return DType::f32;
  else if constexpr (std::is_same_v<U, double>) return DType::f64;
  else if constexpr (std::is_same_v<U, Half>) return DType::f16;
  else if constexpr (std::is_same_v<U, BFloat16>) return DType::bf16;
  else if constexpr (std::is_same_v<U, bool>) return DType::boolean;
  else if constexpr (std::is_same_v<U, std::uint8_t>) return DType::u8;
  else if constexpr (std::is_same_v<U, std::int8_t>) return DType::i8;
  else if constexpr (std::is_same_v<U, std::int16_t>) return DType::i16;
  else if constexpr (std::is_same_v<U, std::int32_t>) return DType::i32;
  else if constexpr (std::is_integral_v<U> && std::is_signed_v<U> && sizeof(U) == 8)
    return DType::i64;
  else static_assert(!sizeof(U), "no DType for this element type");
}
PACKATTN_EXPORT DType dtype_from_dlpack(unsigned code, unsigned bits, unsigned lanes);
}  // namespace detail

/// A tensor somebody else owns: address, element type, device, shape and strides in elements.
/// A default-constructed view means "not given". Nothing is checked here; operations check.
class PACKATTN_EXPORT TensorView {
 public:
  static constexpr int max_rank = 8;
  using Dims = std::span<const std::int64_t>;

  TensorView() = default;
  /// Contiguous if `strides` is empty.
  TensorView(void* data, DType dtype, Device device, Dims shape, Dims strides = {},
             bool read_only = false);

  /// A contiguous host tensor over `data`; read-only if T is const.
  template <class T>
  static TensorView of(T* data, std::initializer_list<std::int64_t> shape) {
    return {const_cast<std::remove_const_t<T>*>(data),
            detail::dtype_of<T>(),
            Device{},
            Dims(shape.begin(), shape.size()),
            Dims{},
            std::is_const_v<T>};
  }

  /// A one-dimensional host tensor over a contiguous container.
  template <class Container>
  static TensorView of(Container& values) {
    return of(values.data(), {static_cast<std::int64_t>(values.size())});
  }

  /// Any struct with DLTensor's fields, so that no DLPack header is needed here.
  template <class DLTensor>
  static TensorView from_dlpack(const DLTensor& t, bool read_only = false) {
    const auto rank = static_cast<std::size_t>(t.ndim);
    const Dims strides = t.strides ? Dims(t.strides, rank) : Dims{};
    return {static_cast<std::byte*>(t.data) + t.byte_offset,
            detail::dtype_from_dlpack(t.dtype.code, t.dtype.bits, t.dtype.lanes),
            Device{static_cast<DeviceType>(t.device.device_type), t.device.device_id},
            Dims(t.shape, rank),
            strides,
            read_only};
  }

  bool present() const { return dtype_ != DType::none; }
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool read_only() const { return read_only_; }

  /// May exceed max_rank for a foreign tensor; sizes and strides of the first eight are kept.
  int rank() const { return rank_; }
  /// Size and stride (in elements) of a dimension, one of the first eight; negative dimensions
  /// count from the end. Unchecked, but never outside of what is kept.
  std::int64_t size(int dim) const { return shape_[at(dim)]; }
  std::int64_t stride(int dim) const { return strides_[at(dim)]; }
  /// Product of the sizes; INT64_MAX where that has more than 64 bits.
  std::int64_t numel() const;
  std::string shape_string() const;  // "[20, 4, 64]"

 private:
  std::size_t at(int dim) const {
    return static_cast<std::size_t>(std::clamp(dim < 0 ? dim + rank_ : dim, 0, max_rank - 1));
  }

  void* data_ = nullptr;
  DType dtype_ = DType::none;
  bool read_only_ = false;
  Device device_;
  int rank_ = 0;
  std::array<std::int64_t, max_rank> shape_{};
  std::array<std::int64_t, max_rank> strides_{};
};

}  // namespace packattn
