// SPDX-License-Identifier: Apache-2.0
#include "cpu/amx_support.h"

#include <string>

#include "core/injection.h"
#include "cpu/attention_amx.h"
#include "cpu/kda_amx.h"
#include "errors/fault_list.h"

#ifdef PACKATTN_AMX
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace packattn::cpu {
namespace {

#ifdef PACKATTN_AMX

/// Tiles with bf16 products, and the parts of AVX-512 that the kernels are compiled for.
bool processor_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned avx512 = 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31;  // F, DQ, BW, VL
  constexpr unsigned amx = 1U << 22 | 1U << 24;                           // bf16, tiles
  if ((b & avx512) != avx512 || (d & amx) != amx) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  return (a & 1U << 5) != 0;  // AVX-512 bf16
}

__attribute__((target("xsave"))) unsigned long long saved_registers() { return _xgetbv(0); }

/// Whether the operating system saves the registers of AVX-512 and the tiles, and lets us use them.
bool system_permits_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & 1U << 27) == 0) return false;
  constexpr unsigned long long needed = 0x6 | 0xe0 | 0x60000;  // AVX, AVX-512, tile shape and data
  if ((saved_registers() & needed) != needed) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

AmxKernels find_kernels() {
  if (!processor_has_amx() || !system_permits_amx()) return {};
  return {.attention = &hardware_amx_attention(), .kda = &hardware_amx_kda()};
}

#else

AmxKernels find_kernels() { return {}; }

#endif

AmxKernels& current() {
  static AmxKernels kernels = find_kernels();
  return kernels;
}

}  // namespace

const AmxKernels& amx_kernels() { return current(); }
void substitute_amx_kernels(const AmxKernels& kernels) { current() = kernels; }

bool has_amx() { return amx_kernels().attention != nullptr && !injected_faults().hide_simd; }

std::optional<Fault> decline_amx(std::string_view row) {
  if (has_amx()) return {};
  return make_fault(Code::simd_missing,
                    {.argument = std::string(row), .limit = "AMX with bf16 products"});
}

}  // namespace packattn::cpu
