// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd_support.h"

#include <string>

#include <hwy/targets.h>

#include "core/injection.h"
#include "errors/fault_list.h"

namespace packattn::cpu {
namespace {

std::string instructions_of(std::int64_t target) {
  switch (target) {
    case HWY_AVX3: return "AVX-512";
    case HWY_AVX2: return "AVX2 and FMA";
    default: return "NEON";
  }
}

}  // namespace

std::optional<Fault> decline_simd(std::string_view row, std::int64_t target) {
  // Highway asks the processor each time, and under a hypervisor cpuid traps: 50 us a call.
  static const std::int64_t supported = hwy::SupportedTargets();
  if ((supported & target) != 0 && !injected_faults().hide_simd) return {};
  return make_fault(Code::simd_missing,
                    {.argument = std::string(row), .limit = instructions_of(target)});
}

}  // namespace packattn::cpu
