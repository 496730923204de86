// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include <cuda_runtime_api.h>

#include "core/implementation_table.h"

namespace packattn::cuda {

/// Throws PA4003 with CUDA's own words if `status` is an error; `what` names the call.
void check(cudaError_t status, const char* what);

/// What kernels need to know of a device; read once per device.
struct DeviceProperties {
  int multiprocessors = 0;
  int capability = 0;    ///< 90 for 9.0
  int shared_bytes = 0;  ///< shared memory that one block can have
};
const DeviceProperties& properties(int device);

/// Why no kernel can run on this device: no driver, too old a device. Empty if one can.
std::optional<Fault> device_fault(Device device);

/// Makes a device current and restores the one before.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  int wanted_ = 0;
};

/// Lets this thread allocate while another of its streams is being captured into a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Scratch memory of one call in stream order: the caller's, or ours for the time of the call.
class DeviceWorkspace {
 public:
  DeviceWorkspace(const RunContext& context, std::size_t bytes);
  ~DeviceWorkspace();
  DeviceWorkspace(const DeviceWorkspace&) = delete;
  DeviceWorkspace& operator=(const DeviceWorkspace&) = delete;

  /// The next `count` objects, aligned to 256 bytes.
  template <class T>
  T* take(std::size_t count) {
    auto* memory = next_;
    next_ += aligned(count * sizeof(T));
    return reinterpret_cast<T*>(memory);
  }
  static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  std::byte* owned_ = nullptr;
  std::byte* next_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

inline cudaStream_t stream_of(const RunContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

}  // namespace packattn::cuda
