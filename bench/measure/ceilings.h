// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

// What this machine can do at most, measured beside every result: absolute rates of two runs on a
// shared machine say little, their ratio to the ceiling of the same run does.

namespace packattn::bench {

/// One instruction set of this processor.
struct FmaPeak {
  std::string target;  ///< "avx512", as in the names of implementations
  double gflops = 0;   ///< multiply-adds from registers into fp32, one thread
};

/// Best of several short runs, for every target that has kernels and that this processor has.
std::vector<FmaPeak> measure_fma_peaks();

/// Gigabytes a second of memcpy between buffers beyond the caches, read + written, all threads.
double measure_copy(int threads);

/// Gigabytes a second that vector loads bring in from beyond the caches, all threads.
double measure_read(int threads);

/// Processor time of all threads of this process so far.
double processor_seconds();

/// Peak resident memory of this process so far, in bytes.
std::size_t peak_memory();

}  // namespace packattn::bench
