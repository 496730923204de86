// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <cuda.h>

#include "packattn/tensor.h"

namespace packattn::cuda::sm90 {

/// One dimension of a tensor as the copy engine sees it; strides in elements.
struct BoxDimension {
  std::int64_t size;
  std::int64_t stride;
  int box;  ///< what one copy takes of it
};

/// What the copy engine needs to know to fetch boxes of a 16-bit tensor into rows of 128 bytes,
/// swizzled; innermost dimension first, at most 5. Throws PA4003 if the driver refuses.
CUtensorMap tensor_map(const void* data, DType dtype, std::span<const BoxDimension> dimensions);

}  // namespace packattn::cuda::sm90
