// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <fmt/format.h>

#include "core/check_attention.h"

namespace packattn {

void check_context(const Context& context, FaultList& faults) {
  if (context.threads < 0) {
    faults.add(
        Code::threads_invalid,
        {.argument = "threads", .value = std::to_string(context.threads), .limit = "at least 0"});
  }
  const auto address = reinterpret_cast<std::uintptr_t>(context.workspace.data());
  if (address % 64 != 0) {
    faults.add(Code::workspace_misaligned,
               {.argument = "workspace", .value = std::to_string(address % 64), .limit = "64"});
  }
}

void check_context_without_list(std::string_view op, const Context& context, FaultList& faults) {
  check_context(context, faults);
  if (context.implementation.empty()) return;
  faults.add(Code::implementation_unknown, {.argument = std::string(op),
                                            .value = '"' + context.implementation + '"',
                                            .limit = "none by name"});
}

bool check_device(std::string_view name, Device device, FaultList& faults) {
  if (device.is_host() || device.type == DeviceType::cuda ||
      device.type == DeviceType::cuda_managed) {
    return true;
  }
  faults.add(Code::device_unsupported,
             {.argument = std::string(name), .value = to_string(device), .limit = "cpu and cuda"});
  return false;
}

void check_rows(std::string_view name, std::int64_t rows, const detail::BatchSide& side,
                bool capacity, FaultList& faults) {
  if (side.count < 0) return;  // could not be read, and said so
  if (side.rows > rows) {
    if (side.exact) {
      faults.add(Code::boundaries_end, {.argument = side.argument,
                                        .position = std::string(name),
                                        .value = std::to_string(side.rows),
                                        .limit = std::to_string(rows)});
      return;
    }
    std::size_t last = 0;
    for (std::size_t n = 0; n < side.lengths.size(); ++n) {
      if (side.lengths[n] > 0 && side.starts[n] + side.lengths[n] == side.rows) last = n;
    }
    faults.add(Code::range_past_end, {.argument = side.argument,
                                      .position = fmt::format("sequence {}", last),
                                      .value = std::to_string(side.rows - 1),
                                      .limit = std::to_string(rows),
                                      .note = fmt::format("the tensor is {}", name)});
  } else if (side.exact && !capacity && side.rows < rows) {
    faults.add(Code::rows_after_end, {.argument = side.argument,
                                      .position = std::string(name),
                                      .value = std::to_string(side.rows),
                                      .limit = std::to_string(rows)});
  }
}

void check_batch_device(const detail::BatchState& batch, Device device, FaultList& faults) {
  const Device where = batch.device;
  if (where.is_host() || (device == where && !device.is_host())) return;
  if (!device.is_host()) {
    faults.add(
        Code::boundaries_device,
        {.argument = batch.q.argument, .value = to_string(where), .limit = to_string(device)});
  } else if (!batch.host_known) {
    faults.add(
        Code::boundaries_on_device,
        {.argument = batch.q.argument, .position = "a call on the CPU", .value = to_string(where)});
  }
}

}  // namespace packattn
