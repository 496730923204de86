// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "packattn/export.h"

#define PACKATTN_VERSION_MAJOR 0
#define PACKATTN_VERSION_MINOR 1
#define PACKATTN_VERSION_PATCH 0

namespace packattn {

/// "major.minor.patch" of the library that was linked, which can differ from the macros of the
/// headers that were compiled against.
PACKATTN_EXPORT std::string_view version() noexcept;

}  // namespace packattn
