// SPDX-License-Identifier: Apache-2.0
// The kernels of the AMX rows on emulated tiles. Compiled like the units that they stand in for.
#include "conformance/amx_kernels.h"

#include <cstdlib>
#include <string_view>

#include "cpu/amx_support.h"
#include "cpu/attention_amx_tile-inl.h"
#include "support/emulated_tiles.h"

namespace packattn::test {

void use_emulated_tiles() {
  const char* tiles = std::getenv("PACKATTN_TEST_TILES");
  if (tiles != nullptr && std::string_view(tiles) == "hardware") return;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw")) return;
  static constexpr cpu::AmxAttention attention = cpu::attention_on<EmulatedTiles>();
  cpu::substitute_amx_kernels({.attention = &attention, .kda = &emulated_amx_kda()});
}

}  // namespace packattn::test
