// SPDX-License-Identifier: Apache-2.0
#include "packattn/version.h"

#define PACKATTN_TEXT_OF(x) #x
#define PACKATTN_TEXT(x) PACKATTN_TEXT_OF(x)

namespace packattn {

std::string_view version() noexcept {
  return PACKATTN_TEXT(PACKATTN_VERSION_MAJOR) "." PACKATTN_TEXT(
      PACKATTN_VERSION_MINOR) "." PACKATTN_TEXT(PACKATTN_VERSION_PATCH);
}

}  // namespace packattn
