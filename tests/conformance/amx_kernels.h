// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kda_amx.h"

namespace packattn::test {

/// Lets the AMX rows run on emulated tiles, on any processor with AVX-512 and bf16; on others they
/// decline as they do in the library. With PACKATTN_TEST_TILES=hardware they stay on the
/// processor's tiles.
void use_emulated_tiles();

const cpu::AmxKda& emulated_amx_kda();

}  // namespace packattn::test
