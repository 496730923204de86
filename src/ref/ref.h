// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/implementation_table.h"
#include "core/layer_calls.h"

/// The specification: fp64 inside, written as the mathematics reads, every option.
namespace packattn::ref {

AttentionImplementation attention();
KdaImplementation kda_recurrent();
KdaImplementation kda_chunk();
KdaImplementation kda_gate();
L2NormImplementation l2norm();
ShortConvolutionImplementation short_convolution();
GatedRmsNormImplementation gated_rms_norm();

}  // namespace packattn::ref
