// SPDX-License-Identifier: Apache-2.0
#include "core/select.h"

#include <algorithm>
#include <atomic>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace packattn {
namespace {

int count_processors() {
#ifdef __linux__
  // hardware_concurrency counts what the machine has, in a container too.
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::atomic<int> most_threads{0};

}  // namespace

void limit_threads(int most) { most_threads.store(most, std::memory_order_relaxed); }

std::string to_string(Op op) {
  switch (op) {
    case Op::attention: return "attention";
    case Op::kda_recurrent: return "kda_recurrent";
    case Op::kda_chunk: return "kda_chunk";
    case Op::kda_gate: return "kda_gate";
    case Op::l2norm: return "l2norm";
    case Op::short_convolution: return "short_convolution";
    case Op::gated_rms_norm: return "gated_rms_norm";
  }
  return "an unknown operation";
}

int resolve_threads(int wanted, double operations) {
  // Asked once: glibc opens a file for it, 7 us, more than the rest of a small call.
  static const int processors = count_processors();
  // No more than processors run at a time, while memory is taken for each: 45 GB for a million.
  // 64 lets a small machine make the schedules of a large one.
  if (wanted > 0) return std::min(wanted, std::max(64, processors));
  // 50 us of one core; a second thread costs the call 17 us.
  constexpr double operations_per_thread = 1 << 20;
  if (operations < 2 * operations_per_thread) return 1;
  const int limit = most_threads.load(std::memory_order_relaxed);
  const int most = limit > 0 ? std::min(limit, processors) : processors;
  return static_cast<int>(std::min<double>(most, operations / operations_per_thread));
}

}  // namespace packattn
