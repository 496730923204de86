// SPDX-License-Identifier: Apache-2.0
// The kernel of cpu/kda_chunk.amx_bf16 on the tiles of the processor; nothing here runs before
// amx_support.cpp has found them.
// As in cpu/simd_targets.h, but without AVX2 (bit 9).
#define HWY_DISABLED_TARGETS 0x0FFF9EFFLL

#include "cpu/kda_amx.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kda_amx_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
#include "cpu/kda_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {

const AmxKda& hardware_kda() {
  static constexpr AmxKda kernel = kda_on<HardwareTiles>();
  return kernel;
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace packattn::cpu {

const AmxKda& hardware_amx_kda() { return N_AVX3::hardware_kda(); }

}  // namespace packattn::cpu
#endif
