// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "packattn/tensor.h"

namespace packattn::bench {

/// Random numbers of one of the three types; a short pattern repeated, since drawing hundreds of
/// millions of normal numbers would take longer than attending to them.
class Buffer {
 public:
  Buffer(DType dtype, std::vector<std::int64_t> shape, std::uint32_t seed)
      : dtype_(dtype), shape_(std::move(shape)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::byte> pattern(size_of(dtype) * 65537);
    for (std::size_t i = 0; i < 65537; ++i) write(pattern.data(), i, normal(random));
    std::size_t bytes = size_of(dtype);
    for (const std::int64_t n : shape_) bytes *= static_cast<std::size_t>(n);
    count_ = bytes / size_of(dtype);
    bytes_.reset(new (std::align_val_t{64}) std::byte[bytes]);
    for (std::size_t i = 0; i < bytes; ++i) bytes_.get()[i] = pattern[i % pattern.size()];
  }
  std::size_t bytes() const { return count_ * size_of(dtype_); }
  TensorView view() { return {bytes_.get(), dtype_, Device{}, shape_}; }
  std::vector<float> floats() const {
    std::vector<float> values(count_);
    for (std::size_t i = 0; i < count_; ++i) values[i] = read(i);
    return values;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  // Truncated to 16 bits, which is good enough for a number that is random anyway.
  void write(std::byte* to, std::size_t i, float x) const {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    auto* half = reinterpret_cast<std::uint16_t*>(to) + i;
    if (dtype_ == DType::f32) reinterpret_cast<float*>(to)[i] = x;
    else if (dtype_ == DType::bf16) *half = static_cast<std::uint16_t>(bits >> 16);
    else if (std::abs(x) < 0x1p-14F) *half = 0;
    else
      *half =
          static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | ((bits >> 13 & 0x3ffffU) - 0x1c000U));
  }

  float read(std::size_t i) const {
    if (dtype_ == DType::f32) return reinterpret_cast<const float*>(bytes_.get())[i];
    const std::uint32_t half = reinterpret_cast<const std::uint16_t*>(bytes_.get())[i];
    if (dtype_ == DType::bf16) return std::bit_cast<float>(half << 16);
    const float magnitude =
        std::ldexp(static_cast<float>((half & 0x3ffU) | ((half & 0x7c00U) ? 0x400U : 0)),
                   std::max(1, static_cast<int>(half >> 10 & 0x1fU)) - 25);
    return (half & 0x8000U) ? -magnitude : magnitude;
  }

  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::size_t count_ = 0;
  std::unique_ptr<std::byte, Free> bytes_;
};

inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace packattn::bench
