// SPDX-License-Identifier: Apache-2.0
#include "core/select.h"

#include <algorithm>
#include <thread>

namespace packattn {

int resolve_threads(int wanted, double operations) {
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // No more than processors run at a time, while memory is taken for each: 45 GB for a million.
  // 64 lets a small machine make the schedules of a large one.
  if (wanted > 0) return std::min(wanted, std::max(64, processors));
  // 50 us of one core; a second thread costs the call 17 us.
  constexpr double operations_per_thread = 1 << 20;
  if (operations < 2 * operations_per_thread) return 1;
  return static_cast<int>(std::min<double>(processors, operations / operations_per_thread));
}

}  // namespace packattn
