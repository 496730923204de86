// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "packattn/tensor.h"

// The one conversion between fp32 and the 16-bit types: to nearest, ties to even. Vector code
// has to give the same bits (Highway 1.0 truncates to bf16, which costs 3.3e-3 instead of 1.7e-3).

namespace packattn {

constexpr float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

constexpr BFloat16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) {  // NaN: rounding could carry it to infinity
    return {static_cast<std::uint16_t>((u >> 16) | 0x40U)};
  }
  return {static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

constexpr float to_float(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
  }
  if (magnitude >= 0x400U) {
    return std::bit_cast<float>(sign | ((magnitude + 0x1c000U) << 13));
  }
  // Subnormal: magnitude * 2^-24, exact in fp32.
  const float value = static_cast<float>(magnitude) * 0x1p-24F;
  return sign != 0 ? -value : value;
}

constexpr Half to_half(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x477ff000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 lets the addition itself round to a multiple of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

/// Reads and writes elements of the three floating-point types as fp32.
template <class T>
constexpr float load(T x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else return to_float(x);
}
template <class T>
constexpr T store(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else if constexpr (std::is_same_v<T, Half>) return to_half(x);
  else return to_bf16(x);
}

/// Calls `f` with a value of the element type that `dtype` names: f32, f16 or bf16.
template <class F>
decltype(auto) with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    default: return f(float{});
  }
}

}  // namespace packattn
