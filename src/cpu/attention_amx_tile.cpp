// SPDX-License-Identifier: Apache-2.0
// The kernels of cpu/attention.amx_bf16 on the tiles of the processor. This unit alone is compiled
// for AMX and AVX-512 with bf16; nothing in it runs before amx_support.cpp has found both.
#include "cpu/attention_amx_tile-inl.h"

namespace packattn::cpu {

const AmxAttention& hardware_amx_attention() {
  static constexpr AmxAttention kernels = attention_on<HardwareTiles>();
  return kernels;
}

}  // namespace packattn::cpu
