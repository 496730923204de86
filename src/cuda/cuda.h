// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "core/implementation_table.h"

/// GPU kernels. Without a CUDA compiler no_cuda.cpp stands in: empty lists.
namespace packattn::cuda {

std::span<const AttentionImplementation> attention();
std::span<const KdaImplementation> kda_recurrent();
std::span<const KdaImplementation> kda_chunk();

/// "13.0, sm_80 and sm_90a", or empty without the backend.
std::string_view build_description();

}  // namespace packattn::cuda
