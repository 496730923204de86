// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <cuda_runtime_api.h>

#include "call.h"
#include "device_memory.h"
#include "fault.h"

namespace packattn::cli {
namespace {

void check(cudaError_t status, const char* what, Device device) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation) {
    fail(Code::device_memory, {.argument = what, .value = cudaGetErrorString(status)});
  }
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ||
      status == cudaErrorInvalidDevice) {
    fail(Code::cuda_unavailable,
         {.argument = "device", .value = to_string(device), .limit = cudaGetErrorString(status)});
  }
  fail(Code::cuda_failed, {.argument = what, .value = cudaGetErrorString(status)});
}

std::size_t bytes_of(const TensorView& x) {
  return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (void* block : blocks_) cudaFree(block);
}

TensorView DeviceMemory::make(const TensorView& like, Device device) {
  check(cudaSetDevice(device.index), "cudaSetDevice", device);
  void* block = nullptr;
  check(cudaMalloc(&block, std::max<std::size_t>(1, bytes_of(like))), "cudaMalloc", device);
  blocks_.push_back(block);
  return {block, like.dtype(), device, shape_of(like)};
}

TensorView DeviceMemory::copy(const TensorView& host, Device device) {
  TensorView there = make(host, device);
  check(cudaMemcpy(there.data(), host.data(), bytes_of(host), cudaMemcpyHostToDevice), "cudaMemcpy",
        device);
  return there;
}

void DeviceMemory::fetch(const TensorView& from, std::byte* to) {
  wait(from.device());
  check(cudaMemcpy(to, from.data(), bytes_of(from), cudaMemcpyDeviceToHost), "cudaMemcpy",
        from.device());
}

void DeviceMemory::wait(Device device) {
  check(cudaSetDevice(device.index), "cudaSetDevice", device);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", device);
}

}  // namespace packattn::cli
