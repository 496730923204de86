// SPDX-License-Identifier: Apache-2.0
#include "device_memory.h"
#include "fault.h"

namespace packattn::cli {

DeviceMemory::~DeviceMemory() = default;
TensorView DeviceMemory::make(const TensorView&, Device device) {
  fail(Code::cuda_absent, {.argument = "device", .value = to_string(device)});
}
TensorView DeviceMemory::copy(const TensorView& host, Device device) { return make(host, device); }
void DeviceMemory::fetch(const TensorView&, std::byte*) {}
void DeviceMemory::wait(Device) {}

}  // namespace packattn::cli
