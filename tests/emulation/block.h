// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// Threads of a CUDA block as fibers of one processor thread. A fiber runs until it has to wait for
// others, so a barrier that is missing shows as wrong results, and one that not all reach as a
// failed run. Blocks run one after the other in an order of their own choice.

namespace packattn::emulation {

struct Grid {
  std::int64_t block = 0, blocks = 0;
  int threads = 0;
  std::byte* shared = nullptr;
};

Grid& grid();
int thread();
void meet_block();
void meet_warp();

/// A lane's 8 bytes for the others of its warp; the lane's own copy of lane `from`'s value.
std::uint64_t exchange_bits(std::uint64_t value, int from);

template <class T>
T exchange(T value, int from) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange_bits(bits, from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

/// Runs `kernel` once a thread of every block. Shared memory starts as NaN.
void run_grid(std::int64_t blocks, int threads, std::size_t shared_bytes,
              const std::function<void()>& kernel);

}  // namespace packattn::emulation
