// SPDX-License-Identifier: Apache-2.0
#include "core/half.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "support/random.h"
#include "support/scalar.h"

namespace packattn {
namespace {

template <class T>
struct Name;
template <>
struct Name<Half> {
  static constexpr DType dtype = DType::f16;
};
template <>
struct Name<BFloat16> {
  static constexpr DType dtype = DType::bf16;
};

double defined(DType dtype, std::uint16_t bits) {
  std::byte element[2];
  std::memcpy(element, &bits, 2);
  return test::decode(dtype, element);
}
std::uint16_t defined_bits(DType dtype, double value) {
  std::byte element[2];
  test::encode(dtype, element, value);
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, 2);
  return bits;
}

template <class T>
class HalfTypes : public testing::Test {};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(HalfTypes, Types);

TYPED_TEST(HalfTypes, EveryValueReadsAsItIsDefined) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    const double expected = defined(Name<TypeParam>::dtype, stored);
    const float actual = to_float(TypeParam{stored});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
    } else {
      ASSERT_EQ(actual, expected) << bits;
      ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << bits;
    }
  }
}

TYPED_TEST(HalfTypes, EveryValueAndItsNeighboursRoundToNearestEven) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const double value = defined(Name<TypeParam>::dtype, static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    // The value, the middle between it and the next one, and one fp32 step around both.
    const double next = defined(Name<TypeParam>::dtype, static_cast<std::uint16_t>(bits + 1));
    const double middle = std::isfinite(next) ? (value + next) / 2 : value;
    for (const double centre : {value, middle}) {
      const auto x = static_cast<float>(centre);
      for (const float y : {x, std::nextafterf(x, -1e38F), std::nextafterf(x, 1e38F)}) {
        ASSERT_EQ(store<TypeParam>(y).bits, defined_bits(Name<TypeParam>::dtype, y)) << y;
      }
    }
  }
}

TYPED_TEST(HalfTypes, AnyFloatRoundsAsItIsDefined) {
  test::Random random(test::process_seed());
  for (int i = 0; i < 200000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(store<TypeParam>(x))));
    } else {
      ASSERT_EQ(store<TypeParam>(x).bits, defined_bits(Name<TypeParam>::dtype, x)) << x;
    }
  }
}

TYPED_TEST(HalfTypes, NaNWithALowPayloadStaysNaN) {
  EXPECT_TRUE(std::isnan(to_float(store<TypeParam>(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(to_float(store<TypeParam>(std::bit_cast<float>(0xffffffffU)))));
}

}  // namespace
}  // namespace packattn
