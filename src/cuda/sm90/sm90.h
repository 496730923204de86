// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/implementation_table.h"

/// Kernels that use Hopper's own instructions.
namespace packattn::cuda::sm90 {

AttentionImplementation attention_by_length();
AttentionImplementation attention_forward();
KdaImplementation kda_chunk();

}  // namespace packattn::cuda::sm90
