// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "packattn/implementation.h"

namespace packattn::test {

/// Letters, digits and underscores, as a GoogleTest name needs it.
std::string test_name(std::string_view text);

/// True if the implementation takes the call, that is, if nothing was declined. Counts both, and
/// prints at the end of the program what every implementation ran and what it declined, and why.
/// Fails if `ref` declines, or if the reason is not one of PA3xxx and PA4xxx.
bool takes(const std::string& implementation, const std::optional<Fault>& declined);

}  // namespace packattn::test
