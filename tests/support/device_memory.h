// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace packattn::test {

/// Memory of the first CUDA device. Without CUDA in the build there is none, and nobody asks for
/// it, because every implementation that would run there declines.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();  // NOLINT(performance-trivially-destructible): not where there is CUDA
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  void put(std::span<const std::byte> bytes, std::size_t offset = 0);
  /// Waits for everything the device is doing, then copies; fails the test on a CUDA error.
  void get(std::span<std::byte> bytes, std::size_t offset = 0) const;

 private:
  std::byte* data_ = nullptr;
};

/// "simt/attention" and "sm90/..." run on a device, everything else on the host.
inline bool runs_on_device(std::string_view implementation) {
  return implementation.starts_with("simt/") || implementation.starts_with("sm90/");
}

}  // namespace packattn::test
