// SPDX-License-Identifier: Apache-2.0
#include "emulation/block.h"

#include <algorithm>
#include <csetjmp>
#include <exception>
#include <memory>
#include <stdexcept>
#include <vector>

#include <ucontext.h>

namespace packattn::emulation {
namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;
constexpr int lanes = 32;

/// What a group of fibers waits at. Two sets of values: a lane can be one meeting ahead of another.
struct Meeting {
  int members = 0;
  int arrived = 0;
  unsigned number = 0;
  std::array<std::array<std::uint64_t, lanes>, 2> values{};
};

struct Fiber {
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
  std::jmp_buf at;
  bool started = false;
  bool done = false;
};

struct Runner {
  Grid grid;
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  Meeting block;
  int threads = 0;
  int current = 0;
  bool moved = false;  // somebody got on since the last round
  const std::function<void()>* kernel = nullptr;
  std::jmp_buf scheduler;
  ucontext_t entry_context{}, scheduler_context{};
  std::vector<std::byte> shared;
};

Runner& runner() {
  thread_local Runner runner;
  return runner;
}

void fiber_main() {
  (*runner().kernel)();
  Runner& r = runner();
  r.fibers[static_cast<std::size_t>(r.current)].done = true;
  r.moved = true;
  _longjmp(r.scheduler, 1);
}

/// Lets the other fibers run. setjmp and longjmp, because swapcontext asks the kernel each time.
void yield() {
  Runner& r = runner();
  if (_setjmp(r.fibers[static_cast<std::size_t>(r.current)].at) == 0) _longjmp(r.scheduler, 1);
}

void resume(int index) {
  Runner& r = runner();
  r.current = index;
  Fiber& fiber = r.fibers[static_cast<std::size_t>(index)];
  if (_setjmp(r.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  getcontext(&r.entry_context);
  r.entry_context.uc_stack.ss_sp = fiber.stack.get();
  r.entry_context.uc_stack.ss_size = stack_bytes;
  r.entry_context.uc_link = nullptr;
  makecontext(&r.entry_context, fiber_main, 0);
  setcontext(&r.entry_context);
}

/// Returns the set of values that was complete.
unsigned meet(Meeting& at) {
  Runner& r = runner();
  const unsigned number = at.number;
  if (++at.arrived == at.members) {
    at.arrived = 0;
    ++at.number;
    r.moved = true;
  } else {
    while (at.number == number) yield();
  }
  return number % 2;
}

Meeting& own_warp() { return runner().warps[static_cast<std::size_t>(runner().current / lanes)]; }

void run_block() {
  Runner& r = runner();
  const int warps = r.threads / lanes;
  r.block = {.members = r.threads};
  r.warps.assign(static_cast<std::size_t>(warps), Meeting{.members = lanes});
  for (int i = 0; i < r.threads; ++i) {
    r.fibers[static_cast<std::size_t>(i)].started = r.fibers[static_cast<std::size_t>(i)].done =
        false;
  }
  std::fill(r.shared.begin(), r.shared.end(), std::byte{0xff});
  int left = r.threads;
  bool forward = r.grid.block % 2 == 0;  // odd blocks in the other order: no order is promised
  while (left > 0) {
    r.moved = false;
    left = 0;
    for (int n = 0; n < r.threads; ++n) {
      const int i = forward ? n : r.threads - 1 - n;
      const Fiber& fiber = r.fibers[static_cast<std::size_t>(i)];
      if (fiber.done) continue;
      resume(i);
      left += fiber.done ? 0 : 1;
    }
    if (!r.moved) throw std::logic_error("threads of a block wait at different barriers");
  }
}

}  // namespace

Grid& grid() { return runner().grid; }
int thread() { return runner().current; }
void meet_block() { meet(runner().block); }
void meet_warp() { meet(own_warp()); }

std::uint64_t exchange_bits(std::uint64_t value, int from) {
  Meeting& warp = own_warp();
  const int lane = runner().current % lanes;
  warp.values[warp.number % 2][static_cast<std::size_t>(lane)] = value;
  const unsigned set = meet(warp);
  return warp.values[set][static_cast<std::size_t>(from)];
}

void run_grid(std::int64_t blocks, int threads, std::size_t shared_bytes,
              const std::function<void()>& kernel) {
  Runner& r = runner();
  r.threads = threads;
  r.kernel = &kernel;
  if (r.fibers.size() < static_cast<std::size_t>(threads)) {
    r.fibers.resize(static_cast<std::size_t>(threads));
  }
  r.shared.resize(std::max<std::size_t>(shared_bytes, 16) + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(r.shared.data());
  r.grid.shared = r.shared.data() + (64 - address % 64) % 64;
  r.grid.blocks = blocks;
  r.grid.threads = threads;
  for (std::int64_t block = 0; block < blocks; ++block) {
    r.grid.block = block;
    run_block();
  }
}

}  // namespace packattn::emulation
