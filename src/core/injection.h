// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packattn/implementation.h"

namespace packattn {

/// What inject_faults last set. Read at the places that the faults are about.
const Injection& injected_faults();

}  // namespace packattn
