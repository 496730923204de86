// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "core/implementation_table.h"
#include "core/layer_calls.h"

/// Vector kernels for the CPU. One row for every instruction set compiled in, best first; a row
/// whose instructions this processor lacks declines with PA3006.
namespace packattn::cpu {

std::span<const AttentionImplementation> attention();
std::span<const KdaImplementation> kda_recurrent();
std::span<const KdaImplementation> kda_chunk();
std::span<const KdaImplementation> kda_gate();
std::span<const L2NormImplementation> l2norm();
std::span<const ShortConvolutionImplementation> short_convolution();
std::span<const GatedRmsNormImplementation> gated_rms_norm();

}  // namespace packattn::cpu
