// SPDX-License-Identifier: Apache-2.0
// The vector mathematics that the CPU kernels are built from, on every target that runs here.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "unit/simd_math_test.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/attention_pack-inl.h"
#include "cpu/simd_math-inl.h"

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

/// `function` of every value, a vector at a time.
template <class F>
std::vector<float> map(const std::vector<float>& values, F&& function) {
  std::vector<float> padded(values), result(values.size() + lanes);
  padded.resize(values.size() + lanes);
  for (std::size_t i = 0; i < values.size(); i += lanes) {
    hn::StoreU(function(hn::LoadU(df, padded.data() + i)), df, result.data() + i);
  }
  result.resize(values.size());
  return result;
}

std::vector<float> exp2_of(const std::vector<float>& values) {
  return map(values, [](Vec x) HWY_ATTR { return exp2(df, x); });
}
std::vector<float> tanh_of(const std::vector<float>& values) {
  return map(values, [](Vec x) HWY_ATTR { return tanh(df, x); });
}

/// fp32 to T and back, through vectors and through core/half.h.
template <class T>
bool rounds_like_half_h(const std::vector<float>& values) {
  std::vector<T> narrowed(values.size());
  std::vector<float> widened(values.size());
  narrow(values.data(), values.size(), narrowed.data());
  widen(narrowed.data(), values.size(), values.size(), widened.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (narrowed[i].bits != store<T>(values[i]).bits) return false;
    if (std::bit_cast<std::uint32_t>(widened[i]) !=
        std::bit_cast<std::uint32_t>(load(narrowed[i]))) {
      return false;
    }
  }
  return true;
}
bool rounds(const std::vector<float>& values) {
  return rounds_like_half_h<Half>(values) && rounds_like_half_h<BFloat16>(values);
}

/// Element d of key n is n + d / 16; in the panel, lane n of dimension d has to be that.
template <class T>
bool packs_panels() {
  std::vector<std::vector<T>> keys(panel, std::vector<T>(16));
  std::vector<const std::byte*> rows;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    for (std::size_t d = 0; d < 16; ++d) {
      keys[n][d] = store<T>(static_cast<float>(n) + static_cast<float>(d) / 16);
    }
    rows.push_back(reinterpret_cast<const std::byte*>(keys[n].data()));
  }
  HWY_ALIGN float packed[16 * panel];
  pack_panel<T>(rows.data(), 16 * sizeof(T), packed);
  for (std::size_t d = 0; d < 16; ++d) {
    for (std::size_t n = 0; n < keys.size(); ++n) {
      if (packed[d * panel + n] != load(keys[n][d])) return false;
    }
  }
  return true;
}
bool packs() { return packs_panels<float>() && packs_panels<Half>() && packs_panels<BFloat16>(); }

}  // namespace

struct Functions {
  std::vector<float> (*exp2)(const std::vector<float>&);
  std::vector<float> (*tanh)(const std::vector<float>&);
  bool (*rounds)(const std::vector<float>&);
  bool (*packs)();
};
Functions functions() { return {exp2_of, tanh_of, rounds, packs}; }

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace packattn::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Calls `check` with the functions of each target that this processor has.
template <class F>
void on_every_target(F&& check) {
  const std::int64_t here = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3
  if (here & HWY_AVX3) check(N_AVX3::functions());
#endif
#if HWY_TARGETS & HWY_AVX2
  if (here & HWY_AVX2) check(N_AVX2::functions());
#endif
#if HWY_TARGETS & HWY_NEON
  if (here & HWY_NEON) check(N_NEON::functions());
#endif
}

double largest_error(const std::vector<float>& x, const std::vector<float>& y,
                     double (*exact)(double)) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = exact(x[i]);
    worst = std::max(worst, std::abs(y[i] - expected) / std::abs(expected));
  }
  return worst;
}

TEST(SimdMath, ExponentialOfTwo) {
  std::vector<float> x;
  for (int i = 0; i <= 12026; ++i) x.push_back(-125.9F + 0.0113F * static_cast<float>(i));
  on_every_target([&](const auto& f) {
    EXPECT_LT(largest_error(x, f.exp2(x), std::exp2), 2e-7);
    EXPECT_EQ(f.exp2({0, -1, 3}), (std::vector<float>{1, 0.5F, 8}));
    EXPECT_EQ(f.exp2({-127, -1e30F, -infinity}), (std::vector<float>{0, 0, 0}));
    EXPECT_TRUE(std::isnan(f.exp2({NAN}).front()));
  });
}

TEST(SimdMath, HyperbolicTangent) {
  std::vector<float> x;
  for (int i = 0; i < 11060; ++i) x.push_back(-12 + 0.00217F * static_cast<float>(i));
  float small = 1e-30F;
  while (small < 1) {
    x.insert(x.end(), {small, -small});
    small *= 1.7F;
  }
  on_every_target([&](const auto& f) {
    EXPECT_LT(largest_error(x, f.tanh(x), std::tanh), 3e-7);
    EXPECT_EQ(f.tanh({0, infinity, -infinity, 1e30F}), (std::vector<float>{0, 1, -1, 1}));
    EXPECT_TRUE(std::isnan(f.tanh({NAN}).front()));
  });
}

TEST(SimdMath, RoundingIsThatOfHalfH) {
  std::mt19937 random(1);
  std::vector<float> x{0, -0.0F, 65504, 65519.9F, 65520, 1e-8F, 5.96e-8F, infinity, -infinity};
  while (x.size() < 100'003) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) x.push_back(value);
  }
  x.push_back(std::bit_cast<float>(0x7fc00000U));
  on_every_target([&](const auto& f) { EXPECT_TRUE(f.rounds(x)); });
}

TEST(SimdMath, KeysAreTransposedIntoLanesOfTheirPanel) {
  on_every_target([](const auto& f) { EXPECT_TRUE(f.packs()); });
}

}  // namespace
}  // namespace packattn::cpu
#endif
