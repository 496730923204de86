// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include <fmt/format.h>

#include "core/injection.h"
#include "errors/fault_list.h"

namespace packattn::cuda {
namespace {

constexpr int oldest_capability = 80;
constexpr int max_devices = 64;

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // the error is reported here; it must not surface in a later call
  const Code code = status == cudaErrorMemoryAllocation ? Code::device_memory : Code::cuda_failed;
  fail(code,
       {.argument = what,
        .value = fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status))});
}

const DeviceProperties& properties(int device) {
  static std::array<DeviceProperties, max_devices> known;
  static std::array<std::once_flag, max_devices> once;
  const auto index = static_cast<std::size_t>(device) % max_devices;
  std::call_once(once[index], [&] {
    known[index] = {.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
                    .capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                                  attribute(cudaDevAttrComputeCapabilityMinor, device),
                    .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
  });
  return known[index];
}

std::optional<Fault> device_fault(Device device) {
  // Every call asks; a device that was fine stays so.
  static std::atomic<std::uint64_t> fine{0};
  const bool small = device.index >= 0 && device.index < 64;
  const std::uint64_t bit = small ? std::uint64_t{1} << device.index : 0;
  if ((fine.load(std::memory_order_relaxed) & bit) != 0 && !injected_faults().hide_cuda) return {};
  int count = 0;
  const cudaError_t status =
      injected_faults().hide_cuda ? cudaErrorInsufficientDriver : cudaGetDeviceCount(&count);
  if (status != cudaSuccess || device.index >= count || device.index < 0) {
    const char* why = status != cudaSuccess ? cudaGetErrorString(status) : "no such device";
    if (!injected_faults().hide_cuda) cudaGetLastError();
    return make_fault(Code::cuda_unavailable,
                      {.argument = "q", .value = to_string(device), .limit = why});
  }
  const int capability = properties(device.index).capability;
  if (capability < oldest_capability) {
    return make_fault(Code::capability_low,
                      {.argument = to_string(device),
                       .value = fmt::format("{}.{}", capability / 10, capability % 10),
                       .limit = "8.0"});
  }
  fine.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

namespace {

/// What calls take from memory and give back is kept for the next call, up to so much: mapping it
/// anew each time took as long as a whole chunked KDA prefill.
constexpr std::uint64_t kept_bytes = std::uint64_t{4} << 30;

/// The device's pool of scratch memory, the library's own.
cudaMemPool_t scratch_pool(int device) {
  static std::array<cudaMemPool_t, max_devices> pools;
  static std::array<std::once_flag, max_devices> once;
  const auto index = static_cast<std::size_t>(device) % max_devices;
  std::call_once(once[index], [&] {
    cudaMemPoolProps wanted{};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location = {cudaMemLocationTypeDevice, device};
    const RelaxedCapture relaxed;
    check(cudaMemPoolCreate(&pools[index], &wanted), "cudaMemPoolCreate");
    std::uint64_t kept = kept_bytes;
    check(cudaMemPoolSetAttribute(pools[index], cudaMemPoolAttrReleaseThreshold, &kept),
          "cudaMemPoolSetAttribute");
  });
  return pools[index];
}

}  // namespace

DeviceGuard::DeviceGuard(Device device) : wanted_(device.index) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != wanted_) check(cudaSetDevice(wanted_), "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() {
  if (previous_ != wanted_) cudaSetDevice(previous_);
}

DeviceWorkspace::DeviceWorkspace(const RunContext& context, std::size_t bytes)
    : next_(context.workspace.data()), stream_(stream_of(context)) {
  if (bytes == 0 || next_ != nullptr) {
    if (next_ != nullptr && context.workspace.size() < bytes) {
      fail(Code::workspace_small, {.argument = "workspace",
                                   .value = std::to_string(context.workspace.size()),
                                   .limit = std::to_string(bytes)});
    }
    return;
  }
  if (injected_faults().fail_allocations) {
    fail(Code::out_of_memory, {.argument = "workspace", .value = std::to_string(bytes)});
  }
  void* memory = nullptr;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaMallocFromPoolAsync(&memory, bytes, scratch_pool(device), stream_), "cudaMallocAsync");
  owned_ = next_ = static_cast<std::byte*>(memory);
}

DeviceWorkspace::~DeviceWorkspace() {
  if (owned_ != nullptr) cudaFreeAsync(owned_, stream_);
}

}  // namespace packattn::cuda
