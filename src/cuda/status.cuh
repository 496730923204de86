// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packattn/error.h"

#include "cuda/device.cuh"
#include "cuda/device_plan.h"

// How kernels of one block report what only the device can see.

namespace packattn::cuda {

/// A fault of one sequence. Each thread keeps its first, which is its lowest sequence's.
struct Finding {
  std::int64_t sequence = 0;
  std::int64_t value = 0;
  int argument = 0;
  int code = 0;

  __device__ void note(std::int64_t n, StatusArgument which, Code what, std::int64_t found) {
    if (code == 0) *this = {n, found, static_cast<int>(which), static_cast<int>(what)};
  }
  __device__ long long key() const { return 8LL * sequence + argument; }
};

/// The status word becomes this finding, unless it has one of a lower sequence.
__device__ inline void write_status(const Finding& finding, StatusWord* status) {
  volatile StatusWord& word = *status;
  if (word.code != 0 && word.sequence <= finding.sequence) return;
  // The code last: the host looks at it first, at any time.
  word.code = 0;
  word.argument = finding.argument;
  word.sequence = finding.sequence;
  word.value = finding.value;
  __threadfence_system();
  word.code = finding.code;
}

/// The block's lowest finding becomes the status word. Every thread calls it, of a kernel of one
/// block; `lowest` is shared and INT64_MAX.
__device__ inline void report(const Finding& finding, long long& lowest, StatusWord* status) {
  if (finding.code != 0) atomicMin(&lowest, finding.key());
  __syncthreads();
  if (finding.code != 0 && finding.key() == lowest) write_status(finding, status);
}

}  // namespace packattn::cuda
