// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/device.cuh"

// Elements whose type is known at run time, and sums over a warp.

namespace packattn::cuda {

/// Calls f with a pointer of the element type to the element at `offset`.
template <class F>
__device__ void with_elements(void* data, DType dtype, std::int64_t offset, F&& f) {
  if (dtype == DType::f32) f(static_cast<float*>(data) + offset);
  else if (dtype == DType::f16) f(static_cast<Half*>(data) + offset);
  else f(static_cast<BFloat16*>(data) + offset);
}

__device__ inline float load_element(void* data, DType dtype, std::int64_t offset) {
  float value = 0;
  with_elements(data, dtype, offset, [&](const auto* from) { value = widen(*from); });
  return value;
}

__device__ inline void store_element(void* data, DType dtype, std::int64_t offset, float value) {
  with_elements(data, dtype, offset, [&]<class T>(T* to) { *to = narrow<T>(value); });
}

/// Bits of an element as they lie in memory, to be decoded later. A load whose value is converted
/// in a branch on its type is waited for in that branch: five rows of a token took 5 us one after
/// the other, and take one memory latency as bits.
template <int count>
struct RawElements {
  std::uint32_t bits[count];

  /// Element i is at base + offset(i); `valid(i)` says whether it exists, others are 0.
  template <class Offset, class Valid>
  __device__ void load(const void* data, DType dtype, Offset&& offset, Valid&& valid) {
    if (dtype == DType::f32) fill(static_cast<const std::uint32_t*>(data), offset, valid);
    else fill(static_cast<const std::uint16_t*>(data), offset, valid);
  }
  __device__ float decode(DType dtype, int i) const {
    if (dtype == DType::f32) return from_bits(bits[i]);
    const auto low = static_cast<std::uint16_t>(bits[i]);
    return dtype == DType::f16 ? widen(Half{low}) : widen(BFloat16{low});
  }

 private:
  template <class Word, class Offset, class Valid>
  __device__ void fill(const Word* data, Offset&& offset, Valid&& valid) {
#pragma unroll
    for (int i = 0; i < count; ++i) bits[i] = valid(i) ? data[offset(i)] : 0U;
  }
};

template <class T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

}  // namespace packattn::cuda
