// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// What fragments of mma.sync and of wgmma have in common: a row lies in the four lanes of a quad.

namespace packattn::cuda {

template <class T>
__device__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 x = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&x);
  } else {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&x);
  }
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

}  // namespace packattn::cuda
