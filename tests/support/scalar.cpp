// SPDX-License-Identifier: Apache-2.0
#include "support/scalar.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace packattn::test {
namespace {

struct Format {
  int mantissa;  // stored bits
  int exponent;  // stored bits
  int bias() const { return (1 << (exponent - 1)) - 1; }
};
constexpr Format half{10, 5};
constexpr Format bfloat16{7, 8};

double from_bits(Format f, std::uint16_t bits) {
  const int fraction = bits & ((1 << f.mantissa) - 1);
  const int exponent = (bits >> f.mantissa) & ((1 << f.exponent) - 1);
  double magnitude = 0;
  if (exponent == (1 << f.exponent) - 1) {
    magnitude = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - f.bias() - f.mantissa);
  } else {
    magnitude = std::ldexp((1 << f.mantissa) + fraction, exponent - f.bias() - f.mantissa);
  }
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}

std::uint16_t to_bits(Format f, double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  const int infinity = ((1 << f.exponent) - 1) << f.mantissa;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | infinity | (1 << (f.mantissa - 1)));
  }
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  // Units of the last place of the number's binade; subnormals share the smallest one.
  int exponent = std::max(std::ilogb(magnitude), 1 - f.bias());
  auto units =
      static_cast<std::int64_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent)));
  // A carry out of the mantissa, and the step from subnormal to normal, add up by themselves.
  const std::int64_t bits =
      units + (static_cast<std::int64_t>(exponent + f.bias() - 1) << f.mantissa);
  return static_cast<std::uint16_t>(sign | (bits < infinity ? bits : infinity));
}

template <class T>
T read(const std::byte* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  return value;
}
template <class T>
void write(std::byte* element, T value) {
  std::memcpy(element, &value, sizeof value);
}

}  // namespace

double decode(DType dtype, const std::byte* element) {
  switch (dtype) {
    case DType::f32: return read<float>(element);
    case DType::f64: return read<double>(element);
    case DType::f16: return from_bits(half, read<std::uint16_t>(element));
    case DType::bf16: return from_bits(bfloat16, read<std::uint16_t>(element));
    case DType::i32: return read<std::int32_t>(element);
    case DType::i64: return static_cast<double>(read<std::int64_t>(element));
    case DType::i16: return read<std::int16_t>(element);
    case DType::i8: return read<std::int8_t>(element);
    default: return read<std::uint8_t>(element);
  }
}

void encode(DType dtype, std::byte* element, double value) {
  switch (dtype) {
    case DType::f32: return write(element, static_cast<float>(value));
    case DType::f64: return write(element, value);
    case DType::f16: return write(element, to_bits(half, value));
    case DType::bf16: return write(element, to_bits(bfloat16, value));
    case DType::i32: return write(element, static_cast<std::int32_t>(value));
    case DType::i64: return write(element, static_cast<std::int64_t>(value));
    case DType::i16: return write(element, static_cast<std::int16_t>(value));
    case DType::i8: return write(element, static_cast<std::int8_t>(value));
    default: return write(element, static_cast<std::uint8_t>(value));
  }
}

double rounded(DType dtype, double value) {
  std::array<std::byte, 8> element{};
  encode(dtype, element.data(), value);
  return decode(dtype, element.data());
}

}  // namespace packattn::test
