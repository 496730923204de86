// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "packattn/error.h"

namespace packattn::cli {

[[noreturn]] inline void fail(Code code, FaultFields fields) {
  throw Error({make_fault(code, std::move(fields))});
}

}  // namespace packattn::cli
