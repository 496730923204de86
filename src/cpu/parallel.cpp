// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include <pthread.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

namespace packattn::cpu {
namespace {

// fork() copies oneTBB's bookkeeping but not its threads, and its locks in whatever state they
// were: a child that inherits them must stay away from it.
std::atomic<bool> forked_after_use{false};

bool may_use_threads() {
  static const bool registered = pthread_atfork(nullptr, nullptr, [] {
                                   forked_after_use.store(true, std::memory_order_relaxed);
                                 }) == 0;
  return registered && !forked_after_use.load(std::memory_order_relaxed);
}

// An arena of its own for every call would be simpler, but oneTBB (2021.8) frees none while its
// threads live and walks through all of them: 7 KB a call, and a call of 70 us took 16 ms after
// 60 000 others. So each calling thread keeps one of each size.
struct ArenaDelete {
  void operator()(tbb::task_arena* arena) const {
    if (may_use_threads()) delete arena;
  }
};

tbb::task_arena& arena_of(int workers) {
  static thread_local std::map<int, std::unique_ptr<tbb::task_arena, ArenaDelete>> arenas;
  // An arena beyond oneTBB's limit makes it print a warning and get no more threads.
  const auto limit =
      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  const int size = std::min(workers, static_cast<int>(limit));
  auto& arena = arenas[size];
  if (!arena) arena.reset(new tbb::task_arena(size));
  return *arena;
}

/// The callback's contract: never two calls at once, and `done` only grows.
class Progress {
 public:
  Progress(const RunContext& context, std::int64_t done, std::int64_t total)
      : callback_(context.progress && *context.progress ? context.progress : nullptr),
        done_(done),
        total_(total) {}

  void item_finished() {
    if (!callback_) return;
    const std::lock_guard lock(mutex_);
    (*callback_)(++done_, total_);
  }

 private:
  const std::function<void(std::int64_t, std::int64_t)>* callback_;
  std::mutex mutex_;
  std::int64_t done_;
  std::int64_t total_;
};

}  // namespace

void parallel_for_items(std::int64_t count, const RunContext& context, const ItemFunction& work,
                        std::int64_t done_before, std::int64_t total) {
  Progress progress(context, done_before, total < 0 ? done_before + count : total);
  std::atomic<std::int64_t> next{0};
  const auto take_items = [&](int worker) {
    try {
      for (;;) {
        const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
        if (item >= count) return;
        work(item, worker);
        progress.item_finished();
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      throw;
    }
  };

  const int workers = static_cast<int>(std::min<std::int64_t>(context.threads, count));
  if (workers <= 1 || !may_use_threads()) {
    take_items(0);
    return;
  }
  // One task a worker, each drawing items from one counter: oneTBB's own splitting would hand out
  // ranges, and the long items at the front would end up on one thread.
  arena_of(workers).execute(
      [&] { tbb::parallel_for(0, workers, take_items, tbb::simple_partitioner()); });
}

}  // namespace packattn::cpu
