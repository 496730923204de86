// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "support/device_memory.h"

namespace packattn::test {
namespace {

void check(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

}  // namespace

DeviceMemory::DeviceMemory(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  data_ = static_cast<std::byte*>(memory);
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

void DeviceMemory::put(std::span<const std::byte> bytes, std::size_t offset) {
  check(cudaMemcpy(data_ + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
}

void DeviceMemory::get(std::span<std::byte> bytes, std::size_t offset) const {
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(bytes.data(), data_ + offset, bytes.size(), cudaMemcpyDeviceToHost));
}

}  // namespace packattn::test
