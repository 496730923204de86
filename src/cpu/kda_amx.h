// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/implementation_table.h"
#include "cpu/kda_schedule.h"

namespace packattn::cpu {

/// The chunked form of KDA on AMX tiles (kda_amx-inl.h), for 16-bit inputs.
struct AmxKda {
  std::size_t (*worker_bytes)(const KdaProblem& p, std::int64_t columns) = nullptr;
  void (*run_item)(const KdaCall& call, const KdaItem& item, std::byte* memory) = nullptr;
};

/// The list's row: what the machine runs, or what tests put in its place (amx_support.h).
KdaImplementation amx_kda_chunk();

/// On the tiles of the processor.
const AmxKda& hardware_amx_kda();

}  // namespace packattn::cpu
