// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/status.cuh"

// The rule of a sequence whose boundaries only the device has.

namespace packattn::cuda {

__device__ inline std::int64_t read_boundary(const DeviceBoundaries& b, std::int64_t i) {
  return b.wide ? static_cast<const std::int64_t*>(b.data)[i * b.stride]
                : static_cast<const std::int32_t*>(b.data)[i * b.stride];
}

/// One side of sequence n. `floor` is the largest entry before it.
__device__ inline bool read_side(const DeviceBoundaries& b, std::int64_t n, std::int64_t rows,
                                 std::int64_t floor, StatusArgument argument, std::int64_t& start,
                                 std::int64_t& length, Finding& finding) {
  start = read_boundary(b, n);
  const std::int64_t end = read_boundary(b, n + 1);
  length = end - start;
  const bool starts = n > 0 || start == 0;
  const bool rises = length >= 0 && start >= floor;
  if (!starts) finding.note(n, argument, Code::boundaries_start, start);
  if (!rises) finding.note(n, argument, Code::boundaries_decrease, end);
  if (end > rows) finding.note(n, argument, Code::boundaries_end, end);
  return starts && rises && end <= rows && length <= INT32_MAX;
}

}  // namespace packattn::cuda
