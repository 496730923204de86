// SPDX-License-Identifier: Apache-2.0
#include "core/select.h"

#include <thread>

namespace packattn {

int resolve_threads(int wanted, double operations) {
  if (wanted > 0) return wanted;
  // 50 us of one core; a second thread costs the call 17 us.
  constexpr double operations_per_thread = 1 << 20;
  if (operations < 2 * operations_per_thread) return 1;
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return static_cast<int>(std::min<double>(processors, operations / operations_per_thread));
}

}  // namespace packattn
