// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "packattn/tensor.h"

namespace packattn::cli {

/// Tensors in the memory of a CUDA device, as long as this lives. In a build without CUDA asking
/// for any raises PA4001.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// A contiguous tensor of this type and shape. Raises PA4002, PA4003, PA5005.
  TensorView make(const TensorView& like, Device device);
  /// A copy of a contiguous host tensor.
  TensorView copy(const TensorView& host, Device device);
  /// Waits for the device, then copies a contiguous tensor's bytes.
  static void fetch(const TensorView& from, std::byte* to);
  static void wait(Device device);

 private:
  std::vector<void*> blocks_;
};

}  // namespace packattn::cli
