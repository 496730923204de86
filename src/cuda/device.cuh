// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include "core/half.h"
#include "cuda/runtime.h"

// What kernels use of CUDA beyond C++. The tests have a file of this name for processors, so that a
// kernel that includes this one alone also runs where there is no GPU (tests/emulation).

namespace packattn::cuda {

constexpr unsigned all_lanes = 0xffffffffU;

__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ inline int block_threads() { return static_cast<int>(blockDim.x); }
__device__ inline std::int64_t block_index() { return blockIdx.x; }
__device__ inline std::int64_t block_count() { return gridDim.x; }
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

/// The dynamic shared memory of the block.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ float4 bytes[];
  return reinterpret_cast<T*>(bytes);
}

__device__ inline float from_bits(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Half x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline float widen(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

/// Rounds to nearest, ties to even.
template <class T>
__device__ T narrow(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else if constexpr (std::is_same_v<T, Half>) return {__half_as_ushort(__float2half_rn(x))};
  else return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

/// 4, 8 or 16 aligned bytes from global to shared memory, behind the thread's back.
template <int bytes>
__device__ void copy_async(void* to, const void* from) {
  __pipeline_memcpy_async(to, from, bytes);
}
__device__ inline void copy_async_commit() { __pipeline_commit(); }
/// Waits until at most `pending` of the thread's committed groups are in flight.
template <int pending>
__device__ void copy_async_wait() {
  __pipeline_wait_prior(pending);
}

/// Launches `kernel` with these arguments; throws PA4003 under the name `what`.
template <class... Parameters, class... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  if (shared_bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "cudaFuncSetAttribute");
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(arguments...);
  check(cudaGetLastError(), what);
}

}  // namespace packattn::cuda
