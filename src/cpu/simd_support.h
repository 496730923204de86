// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "packattn/error.h"

namespace packattn::cpu {

/// PA3006 for a row of an implementation list if this processor lacks the instructions of its
/// Highway target, or if inject_faults() hides them.
std::optional<Fault> decline_simd(std::string_view row, std::int64_t target);

}  // namespace packattn::cpu
