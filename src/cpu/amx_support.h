// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "packattn/error.h"

namespace packattn::cpu {

struct AmxAttention;
struct AmxKda;

/// Kernels for the AMX rows: null where this build or this machine has none.
struct AmxKernels {
  const AmxAttention* attention = nullptr;
  const AmxKda* kda = nullptr;
};

/// What the AMX rows run. The first call asks the operating system for permission to use tile
/// registers, which it grants to a process once and for all its threads.
const AmxKernels& amx_kernels();

/// Replaces them by kernels that run anywhere: tests put kernels on emulated tiles here.
void substitute_amx_kernels(const AmxKernels& kernels);

/// Whether there are kernels.
bool has_amx();

/// PA3006 unless there are.
std::optional<Fault> decline_amx(std::string_view row);

}  // namespace packattn::cpu
