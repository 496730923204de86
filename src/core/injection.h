// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "packattn/implementation.h"
#include "packattn/tensor.h"

namespace packattn {

/// What inject_faults last set. Read at the places that the faults are about.
const Injection& injected_faults();

/// The fault that a call on this device is meant to meet, if one is.
std::optional<Fault> injected_device_fault(Device device);

/// Why this row of an operation's list is meant to decline, if it is.
std::optional<Fault> injected_decline(std::string_view row);

}  // namespace packattn
