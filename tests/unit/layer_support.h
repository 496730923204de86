// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packattn/layers.h"

#include "unit/kda_support.h"

namespace packattn::test {

/// Calls f(name) for every implementation of a layer that runs on this machine.
template <class F>
void for_each_implementation(Op layer, F&& f) {
  for (const std::string& name : implementations(layer)) {
    SCOPED_TRACE(name);
    try {
      f(Context{.threads = 2, .implementation = name});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::implementation_declined) << error.what();
    }
  }
}

inline Owned noise(DType dtype, std::vector<std::int64_t> shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return Owned(dtype, std::move(shape)).fill([&](std::int64_t) { return normal(random); });
}

inline double tolerance(DType out) {
  return out == DType::f32 ? 3e-7 : out == DType::f16 ? 4e-4 : 2.5e-3;
}
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace packattn::test
