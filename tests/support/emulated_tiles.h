// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/amx_tiles.h"

namespace packattn::test {

/// HardwareTiles in plain C++, after the operation given in the processor manual: per instruction
/// the even and the odd elements are summed apart from 0 on, in the order of the pairs, each step
/// one fused multiply-add to nearest, ties to even; the two sums are added, and then added to the
/// destination. Subnormal operands count as 0 and subnormal results become 0, with their signs.
/// NaN is as the machine that emulates makes it. One set of registers a thread.
class EmulatedTiles {
 public:
  EmulatedTiles() { std::memset(registers(), 0xff, 8 * cpu::tile_bytes); }  // NaN, not stale zeros

  template <int tile>
  static void zero() {
    std::memset(registers()[tile].bytes, 0, cpu::tile_bytes);
  }
  template <int tile>
  static void load(const void* from, std::int64_t stride) {
    const auto* rows = static_cast<const unsigned char*>(from);
    for (int m = 0; m < 16; ++m) std::memcpy(registers()[tile].bytes[m], rows + m * stride, 64);
  }
  template <int tile>
  static void store(void* to, std::int64_t stride) {
    auto* rows = static_cast<unsigned char*>(to);
    for (int m = 0; m < 16; ++m) std::memcpy(rows + m * stride, registers()[tile].bytes[m], 64);
  }
  /// Not instrumented: sanitizers made it ten times as slow, and it touches nothing but registers.
  template <int sum, int a, int b>
  __attribute__((no_sanitize("address", "undefined"))) static void multiply() {
    const Elements x(registers()[a]), y(registers()[b]);
    float z[16][16];
    std::memcpy(z, registers()[sum].bytes, sizeof(z));
    for (int m = 0; m < 16; ++m) {
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < 16; ++k) {
        for (int n = 0; n < 16; ++n) {
          even[n] = flushed(__builtin_fmaf(x.even[m][k], y.even[k][n], even[n]));
          odd[n] = flushed(__builtin_fmaf(x.odd[m][k], y.odd[k][n], odd[n]));
        }
      }
      for (int n = 0; n < 16; ++n) {
        z[m][n] = flushed(flushed(z[m][n]) + flushed(even[n] + odd[n]));
      }
    }
    std::memcpy(registers()[sum].bytes, z, sizeof(z));
  }

 private:
  struct Register { alignas(64) unsigned char bytes[16][64]; };
  static Register* registers() {
    static thread_local Register all[8];
    return all;
  }
  __attribute__((no_sanitize("address", "undefined"))) static float flushed(float x) {
    return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x;
  }
  __attribute__((no_sanitize("address", "undefined"))) static float widened(std::uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return flushed(value);
  }
  /// A register as bf16, elements of a pair apart.
  struct Elements {
    __attribute__((no_sanitize("address", "undefined"))) explicit Elements(const Register& from) {
      for (int m = 0; m < 16; ++m) {
        for (int k = 0; k < 16; ++k) {
          std::uint32_t pair = 0;
          std::memcpy(&pair, &from.bytes[m][4 * k], 4);
          even[m][k] = widened(pair << 16);
          odd[m][k] = widened(pair & 0xffff0000U);
        }
      }
    }
    float even[16][16], odd[16][16];
  };
};

}  // namespace packattn::test
