// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/elements.cuh"
#include "cuda/layer_params.h"

// Eight elements of a row at once, as they lie in memory, of a type known at run time.

namespace packattn::cuda {

/// Loaded whole and made numbers of later: what is converted where it is loaded is waited for
/// there.
struct Elements {
  uint4 words[2];  ///< the second of fp32 only

  __device__ float decode(DType dtype, int i) const {
    const auto word = [&](int w) {
      const uint4& four = words[w / 4];
      return w % 4 == 0 ? four.x : w % 4 == 1 ? four.y : w % 4 == 2 ? four.z : four.w;
    };
    if (dtype == DType::f32) return from_bits(word(i));
    const auto half = static_cast<std::uint16_t>(word(i / 2) >> (i % 2 * 16));
    return dtype == DType::f16 ? widen(Half{half}) : widen(BFloat16{half});
  }
};

/// Elements offset .. offset + 8 of a row, those from `left` on as 0.
__device__ inline Elements load_run(const void* data, DType dtype, bool runs, std::int64_t offset,
                                    std::int64_t left) {
  Elements e{};
  if (left <= 0) return e;
  if (runs) {
    const auto* from = static_cast<const std::byte*>(data) + offset * (dtype == DType::f32 ? 4 : 2);
    e.words[0] = *reinterpret_cast<const uint4*>(from);
    if (dtype == DType::f32) e.words[1] = reinterpret_cast<const uint4*>(from)[1];
    return e;
  }
  std::uint32_t bits[layer_run] = {};
#pragma unroll
  for (int i = 0; i < layer_run; ++i) {
    if (i >= left) continue;
    if (dtype == DType::f32) bits[i] = static_cast<const std::uint32_t*>(data)[offset + i];
    else bits[i] = static_cast<const std::uint16_t*>(data)[offset + i];
  }
  if (dtype == DType::f32) {
    e.words[0] = {bits[0], bits[1], bits[2], bits[3]};
    e.words[1] = {bits[4], bits[5], bits[6], bits[7]};
  } else {
    e.words[0] = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                  bits[6] | bits[7] << 16};
  }
  return e;
}
__device__ inline Elements load_run(const RowTensor& x, std::int64_t offset, std::int64_t left) {
  return load_run(x.data, x.dtype, x.runs, offset, left);
}

template <class T>
__device__ std::uint32_t pair(float low, float high) {
  return narrow<T>(low).bits | static_cast<std::uint32_t>(narrow<T>(high).bits) << 16;
}

__device__ inline void store_run(void* data, DType dtype, bool runs, std::int64_t offset,
                                 std::int64_t left, const float (&y)[layer_run]) {
  if (!runs) {
    for (int i = 0; i < layer_run; ++i) {
      if (i < left) store_element(data, dtype, offset + i, y[i]);
    }
    return;
  }
  if (left <= 0) return;
  auto* to = reinterpret_cast<uint4*>(static_cast<std::byte*>(data) +
                                      offset * (dtype == DType::f32 ? 4 : 2));
  if (dtype == DType::f32) {
    reinterpret_cast<float4*>(to)[0] = make_float4(y[0], y[1], y[2], y[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(y[4], y[5], y[6], y[7]);
  } else if (dtype == DType::f16) {
    *to = {pair<Half>(y[0], y[1]), pair<Half>(y[2], y[3]), pair<Half>(y[4], y[5]),
           pair<Half>(y[6], y[7])};
  } else {
    *to = {pair<BFloat16>(y[0], y[1]), pair<BFloat16>(y[2], y[3]), pair<BFloat16>(y[4], y[5]),
           pair<BFloat16>(y[6], y[7])};
  }
}
__device__ inline void store_run(const RowTensor& x, std::int64_t offset, std::int64_t left,
                                 const float (&y)[layer_run]) {
  store_run(x.data, x.dtype, x.runs, offset, left, y);
}

}  // namespace packattn::cuda
