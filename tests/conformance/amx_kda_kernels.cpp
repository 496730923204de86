// SPDX-License-Identifier: Apache-2.0
// The kernel of cpu/kda_chunk.amx_bf16 on emulated tiles.
// As in cpu/simd_targets.h, but without AVX2 (bit 9).
#define HWY_DISABLED_TARGETS 0x0FFF9EFFLL

#include "conformance/amx_kernels.h"
#include "support/emulated_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "conformance/amx_kda_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3
#include "cpu/kda_amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {

const AmxKda& emulated_kda() {
  static constexpr AmxKda kernel = kda_on<test::EmulatedTiles>();
  return kernel;
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace packattn::test {

const cpu::AmxKda& emulated_amx_kda() { return cpu::N_AVX3::emulated_kda(); }

}  // namespace packattn::test
#endif
