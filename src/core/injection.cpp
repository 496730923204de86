// SPDX-License-Identifier: Apache-2.0
#include "core/injection.h"

namespace packattn {
namespace {

Injection& current() {
  static Injection injection;
  return injection;
}

}  // namespace

const Injection& injected_faults() { return current(); }
void inject_faults(const Injection& injection) { current() = injection; }

}  // namespace packattn
