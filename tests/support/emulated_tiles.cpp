// SPDX-License-Identifier: Apache-2.0
// Compiled with AVX-512, or a product would take a hundred times as long, and without sanitizers:
// nothing here touches memory but registers and the tiles that it is given.
#include "support/emulated_tiles.h"

#include <cmath>
#include <cstring>

namespace packattn::test {
namespace {

struct Register { alignas(64) unsigned char bytes[16][64]; };

Register* registers() {
  static thread_local Register all[8];
  return all;
}

float flushed(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

float widened(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return flushed(value);
}

/// A register as bf16, the elements of a pair apart.
struct Elements {
  explicit Elements(const Register& from) {
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

}  // namespace

void EmulatedTiles::reset() { std::memset(registers(), 0xff, 8 * sizeof(Register)); }

void EmulatedTiles::zero_tile(int tile) {
  std::memset(registers()[tile].bytes, 0, cpu::tile_bytes);
}

void EmulatedTiles::load_tile(int tile, const void* from, std::int64_t stride) {
  const auto* rows = static_cast<const unsigned char*>(from);
  for (int m = 0; m < 16; ++m) std::memcpy(registers()[tile].bytes[m], rows + m * stride, 64);
}

void EmulatedTiles::store_tile(int tile, void* to, std::int64_t stride) {
  auto* rows = static_cast<unsigned char*>(to);
  for (int m = 0; m < 16; ++m) std::memcpy(rows + m * stride, registers()[tile].bytes[m], 64);
}

void EmulatedTiles::multiply_tiles(int sum, int a, int b) {
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

}  // namespace packattn::test
