// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "packattn/tensor.h"

// Device memory with random content, and times from device events.

namespace packattn::bench {

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// A contiguous tensor in device memory: random numbers, or integers given by value.
class DeviceBuffer {
 public:
  DeviceBuffer(DType dtype, std::vector<std::int64_t> shape, std::uint32_t seed, float scale = 1)
      : DeviceBuffer(dtype, std::move(shape)) {
    // A pattern of prime length, repeated: drawing a thousand million numbers would take minutes.
    constexpr std::size_t period = 1048583;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::byte> pattern(period * size_of(dtype));
    for (std::size_t i = 0; i < period; ++i) write(pattern.data(), i, scale * normal(random));
    for (std::size_t at = 0; at < bytes_; at += pattern.size()) {
      check(cudaMemcpy(data() + at, pattern.data(), std::min(pattern.size(), bytes_ - at),
                       cudaMemcpyHostToDevice));
    }
  }
  template <class Integer>
  explicit DeviceBuffer(const std::vector<Integer>& values,
                        const std::vector<std::int64_t>& shape = {})
      : DeviceBuffer(
            sizeof(Integer) == 8 ? DType::i64 : DType::i32,
            shape.empty() ? std::vector{static_cast<std::int64_t>(values.size())} : shape) {
    check(cudaMemcpy(data(), values.data(), bytes_, cudaMemcpyHostToDevice));
  }

  TensorView view() const { return {memory_.get(), dtype_, {DeviceType::cuda, 0}, shape_}; }
  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  DeviceBuffer(DType dtype, std::vector<std::int64_t> shape)
      : dtype_(dtype), shape_(std::move(shape)), bytes_(size_of(dtype)) {
    for (const std::int64_t n : shape_) bytes_ *= static_cast<std::size_t>(n);
    void* memory = nullptr;
    check(cudaMalloc(&memory, std::max<std::size_t>(bytes_, 1)));
    memory_.reset(static_cast<std::byte*>(memory));
  }
  void write(std::byte* to, std::size_t i, float x) const {
    if (dtype_ == DType::f32) {
      reinterpret_cast<float*>(to)[i] = x;
    } else {  // bf16, truncated: the number is random anyway
      reinterpret_cast<std::uint16_t*>(to)[i] =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    }
  }

  struct Free {
    void operator()(std::byte* memory) const { cudaFree(memory); }
  };
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// Milliseconds of device time of one call: the median of runs with a flushed second-level cache.
class DeviceTimer {
 public:
  DeviceTimer() : flush_(DType::f32, {64 << 20}, 1) {
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&stop_));
  }
  ~DeviceTimer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  template <class Call>
  double operator()(Call&& call, double budget_ms = 150) {
    call();
    check(cudaDeviceSynchronize());
    const double once = measure(call);
    const int runs = std::clamp(static_cast<int>(budget_ms / std::max(once, 1e-3)), 5, 60);
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) times.push_back(measure(call));
    std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
    return times[static_cast<std::size_t>(runs / 2)];
  }

 private:
  template <class Call>
  double measure(Call&& call) {
    check(cudaMemsetAsync(flush_.data(), 0, flush_.bytes()));
    check(cudaEventRecord(start_));
    call();
    check(cudaEventRecord(stop_));
    check(cudaEventSynchronize(stop_));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_, stop_));
    return ms;
  }

  DeviceBuffer flush_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace packattn::bench
