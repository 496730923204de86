// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/amx_tiles.h"

namespace packattn::test {

/// HardwareTiles in plain C++, after the operation given in the processor manual: per instruction
/// the even and the odd elements are summed apart from 0 on, in the order of the pairs, each step
/// one fused multiply-add to nearest, ties to even; the two sums are added, and then added to the
/// destination. Subnormal operands count as 0 and subnormal results become 0, with their signs.
/// NaN is as the machine that emulates makes it. One set of registers a thread.
class EmulatedTiles {
 public:
  EmulatedTiles() { reset(); }

  template <int tile>
  static void zero() {
    zero_tile(tile);
  }
  template <int tile>
  static void load(const void* from, std::int64_t stride) {
    load_tile(tile, from, stride);
  }
  template <int tile>
  static void load_passing(const void* from, std::int64_t stride) {
    load_tile(tile, from, stride);
  }
  template <int tile>
  static void store(void* to, std::int64_t stride) {
    store_tile(tile, to, stride);
  }
  template <int sum, int a, int b>
  static void multiply() {
    multiply_tiles(sum, a, b);
  }

 private:
  static void reset();  ///< all NaN, not what an earlier task left
  static void zero_tile(int tile);
  static void load_tile(int tile, const void* from, std::int64_t stride);
  static void store_tile(int tile, void* to, std::int64_t stride);
  static void multiply_tiles(int sum, int a, int b);
};

}  // namespace packattn::test
