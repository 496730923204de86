// SPDX-License-Identifier: Apache-2.0
#include "core/injection.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "errors/fault_list.h"

namespace packattn {
namespace {

struct Injectable {
  Code code;
  FaultFields fields;
};

/// Worded as the places do that raise these codes without a test's help.
const std::array device_faults{
    Injectable{Code::cuda_absent, {.argument = "q"}},
    Injectable{Code::cuda_unavailable, {.argument = "q", .limit = "a test injects this"}},
    Injectable{Code::cuda_failed,
               {.argument = "cudaLaunchKernel", .value = "a test injects this (cudaErrorUnknown)"}},
    Injectable{Code::capability_low, {.value = "7.5", .limit = "8.0"}},
    Injectable{Code::device_memory,
               {.argument = "cudaMallocAsync",
                .value = "a test injects this (cudaErrorMemoryAllocation)"}},
};
const std::array declines{
    Injectable{
        Code::head_size_unsupported,
        {.position = "head size", .value = "as given", .limit = "none while a test says so"}},
    Injectable{Code::dtype_unsupported,
               {.value = "the dtype of q", .limit = "none while a test says so"}},
};

const Injectable* find(std::span<const Injectable> known, std::optional<Code> wanted) {
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const Injectable& i) { return i.code == wanted; });
  return found == known.end() ? nullptr : &*found;
}

void check(const char* name, std::span<const Injectable> known, std::optional<Code> wanted) {
  if (!wanted || find(known, wanted) != nullptr) return;
  std::string names;
  for (const Injectable& i : known) names += (names.empty() ? "" : ", ") + code_id(i.code);
  fail(Code::option_value, {.argument = name, .value = code_id(*wanted), .limit = names});
}

Injection& current() {
  static Injection injection;
  return injection;
}

}  // namespace

const Injection& injected_faults() { return current(); }

void inject_faults(const Injection& injection) {
  check("device_fault", device_faults, injection.device_fault);
  check("decline", declines, injection.decline);
  current() = injection;
}

std::optional<Fault> injected_device_fault(Device device) {
  const Injectable* wanted = find(device_faults, injected_faults().device_fault);
  if (wanted == nullptr || device.is_host()) return {};
  FaultFields fields = wanted->fields;
  if (fields.argument.empty()) fields.argument = to_string(device);
  if (fields.value.empty()) fields.value = to_string(device);
  return make_fault(wanted->code, fields);
}

std::optional<Fault> injected_decline(std::string_view row) {
  const Injectable* wanted = find(declines, injected_faults().decline);
  if (wanted == nullptr || row.starts_with("ref/")) return {};
  FaultFields fields = wanted->fields;
  fields.argument = row;
  return make_fault(wanted->code, fields);
}

}  // namespace packattn
