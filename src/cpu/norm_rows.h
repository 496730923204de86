// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/layer_calls.h"

namespace packattn::cpu {

/// What one instruction set has for the row-wise neighbours of KDA.
struct NormRows {
  KdaImplementation gate;
  L2NormImplementation l2norm;
  GatedRmsNormImplementation gated_rms_norm;
};

}  // namespace packattn::cpu
