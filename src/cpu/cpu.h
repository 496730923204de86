// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "core/implementation_table.h"

/// Vector kernels for the CPU. One row for every instruction set compiled in, best first; a row
/// whose instructions this processor lacks declines with PA3006.
namespace packattn::cpu {

std::span<const AttentionImplementation> attention();
std::span<const KdaImplementation> kda_recurrent();
std::span<const KdaImplementation> kda_chunk();

}  // namespace packattn::cpu
