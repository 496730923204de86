// SPDX-License-Identifier: Apache-2.0
#include "core/select.h"

#include <thread>

namespace packattn {

int resolve_threads(int wanted) {
  if (wanted > 0) return wanted;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace packattn
