// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The instructions of AMX, one wrapper each. The compiler's own intrinsics do not say which memory
// they read (g++ 12), so that stores before a tile load could be moved behind it.

namespace packattn::cpu {

/// A tile is 16 rows of 64 bytes: 16 x 16 floats, or 16 x 16 pairs of bf16.
constexpr std::int64_t tile_rows = 16;
constexpr std::int64_t tile_bytes = 1024;

/// The eight tile registers of the processor, all whole tiles, while an object of this class lives.
/// The operating system's permission has to be asked for before (amx_support.h).
class HardwareTiles {
 public:
  HardwareTiles() {
    struct alignas(64) Shape {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Shape shape;
    static_assert(sizeof(Shape) == 64);
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
  }
  ~HardwareTiles() { __asm__ volatile("tilerelease"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

  template <int tile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  /// Rows `stride` bytes apart.
  template <int tile>
  static void load(const void* from, std::int64_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(tile), "r"(from), "r"(stride)
                     : "memory");
  }
  /// The same for what is not needed again soon.
  template <int tile>
  static void load_passing(const void* from, std::int64_t stride) {
    __asm__ volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(tile), "r"(from), "r"(stride)
                     : "memory");
  }
  template <int tile>
  static void store(void* to, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(tile), "r"(to), "r"(stride) : "memory");
  }
  /// sum[m][n] += a[m][2 k] * b[k][2 n] + a[m][2 k + 1] * b[k][2 n + 1] over the 16 pairs k.
  template <int sum, int a, int b>
  static void multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
  }
};

}  // namespace packattn::cpu
