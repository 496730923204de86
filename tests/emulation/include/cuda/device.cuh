// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/half.h"
#include "cuda/runtime.h"
#include "emulation/block.h"

// The processor's version of src/cuda/device.cuh: blocks run one after the other, their threads as
// fibers that meet at barriers and shuffles.

// CUDA's own names.
#define __device__
#define __host__
#define __global__
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__

using std::max;
using std::min;
using std::sqrt;

namespace packattn::cuda {

constexpr unsigned all_lanes = 0xffffffffU;

inline int thread_index() { return emulation::thread(); }
inline int block_threads() { return emulation::grid().threads; }
inline std::int64_t block_index() { return emulation::grid().block; }
inline std::int64_t block_count() { return emulation::grid().blocks; }
inline int lane_index() { return emulation::thread() % 32; }
inline int warp_index() { return emulation::thread() / 32; }

template <class T>
T* shared_memory() {
  return reinterpret_cast<T*>(emulation::grid().shared);
}

inline float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
template <class T>
float widen(T x) {
  return load(x);
}
template <class T>
T narrow(float x) {
  return store<T>(x);
}

// The vectors that CUDA declares.
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { std::uint32_t x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }

inline void __syncthreads() { emulation::meet_block(); }
inline int __syncthreads_or(int x) {
  static int any = 0;
  any |= x;
  __syncthreads();
  const int result = any;
  __syncthreads();
  any = 0;
  __syncthreads();
  return result;
}
inline void __syncwarp() { emulation::meet_warp(); }
inline void __threadfence_system() {}

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return emulation::exchange(value, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulation::exchange(value, lane_index() ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int delta) {
  return emulation::exchange(value, lane_index() >= delta ? lane_index() - delta : lane_index());
}

template <class T>
T atomicAdd(T* to, T value) {
  const T old = *to;
  *to += value;
  return old;
}
template <class T>
T atomicMin(T* to, T value) {
  const T old = *to;
  *to = std::min(old, value);
  return old;
}
inline unsigned atomicExch(unsigned* to, unsigned value) {
  const unsigned old = *to;
  *to = value;
  return old;
}
inline unsigned atomicOr(unsigned* to, unsigned value) {
  const unsigned old = *to;
  *to |= value;
  return old;
}

/// Copies at once: what a kernel must wait for, it finds early.
template <int bytes>
void copy_async(void* to, const void* from) {
  std::memcpy(to, from, bytes);
}
inline void copy_async_commit() {}
template <int>
void copy_async_wait() {}

template <class... Parameters, class... Arguments>
void launch(const char*, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::size_t shared_bytes, cudaStream_t, const Arguments&... arguments) {
  emulation::run_grid(blocks, threads, shared_bytes, [&] { kernel(arguments...); });
}

}  // namespace packattn::cuda
