// SPDX-License-Identifier: Apache-2.0
// Which rows of the state pools every sequence reads and writes, from slots in device memory: the
// checks that the host makes where it sees the slots. A sequence with a wrong slot is skipped, and
// so are all users of a slot that two of them want to write, or one to write and another to read.
//
// One block. Two bits a slot in shared memory, written and disputed, for a range of slots at a
// time; nearly every pool fits in one range.
#include "cuda/kda_own_slots.cuh"

namespace packattn::cuda {
namespace {

constexpr int threads = 256;
constexpr int range_words = 2048;
constexpr std::int64_t range_slots = 32 * range_words;

struct Shared {
  unsigned written[range_words];
  unsigned disputed[range_words];
  long long lowest_fault;
};

__device__ std::int32_t length_of(const KdaParams& p, std::int32_t n) {
  return kda_sequence(p, n).length;
}

/// Calls f(word, bit, slot) for the slots in range that sequence n writes.
template <class F>
__device__ void for_each_write(const KdaParams& p, const SlotInput& in, std::int32_t n,
                               std::int64_t first, F&& f) {
  const std::int64_t writes = writes_of(in, length_of(p, n));
  for (std::int64_t c = 0; c < writes; ++c) {
    const std::int64_t slot = read_slot(in.slots.write, n, c);
    if (slot == p.null_slot || slot < first || slot >= first + range_slots) continue;
    f(static_cast<int>((slot - first) / 32), 1U << ((slot - first) % 32), slot);
  }
}

/// Slots first .. first + range_slots: sequences that share one of them with a writer are skipped.
__device__ void settle_range(const KdaParams& p, const SlotInput& in, std::int64_t first,
                             KdaRow* rows, Shared& shared, Finding& finding) {
  for (int i = thread_index(); i < range_words; i += threads) {
    shared.written[i] = shared.disputed[i] = 0;
  }
  __syncthreads();
  // Skipped sequences write nothing; what an earlier range has skipped may still count here.
  const auto each = [&](auto&& f) {
    for (std::int32_t n = thread_index(); n < p.count; n += threads) {
      if (rows[n].skipped == 0) f(n);
    }
  };
  each([&](std::int32_t n) {
    for_each_write(p, in, n, first, [&](int word, unsigned bit, std::int64_t) {
      if ((atomicOr(&shared.written[word], bit) & bit) != 0) {
        atomicOr(&shared.disputed[word], bit);
      }
    });
  });
  __syncthreads();
  each([&](std::int32_t n) {
    const std::int64_t slot = rows[n].initial;
    if (!in.slots.in_place || slot < first || slot >= first + range_slots) return;
    const auto word = static_cast<int>((slot - first) / 32);
    const unsigned bit = 1U << ((slot - first) % 32);
    bool own = false;
    for_each_write(p, in, n, first,
                   [&](int w, unsigned b, std::int64_t) { own = own || (w == word && b == bit); });
    if (!own && (shared.written[word] & bit) != 0) atomicOr(&shared.disputed[word], bit);
  });
  __syncthreads();
  each([&](std::int32_t n) {
    const StatusArgument name =
        in.slots.shared ? StatusArgument::slots : StatusArgument::write_slots;
    for_each_write(p, in, n, first, [&](int word, unsigned bit, std::int64_t slot) {
      if ((shared.disputed[word] & bit) == 0) return;
      finding.note(n, name, Code::slot_duplicate, slot);
      rows[n].skipped = 1;
    });
    const std::int64_t slot = rows[n].initial;
    if (!in.slots.in_place || slot < first || slot >= first + range_slots) return;
    if ((shared.disputed[(slot - first) / 32] >> ((slot - first) % 32) & 1U) != 0) {
      finding.note(n, name, Code::slot_read_and_written, slot);
      rows[n].skipped = 1;
    }
  });
  __syncthreads();
}

__global__ void __launch_bounds__(threads, 1)
    kda_slots_kernel(const __grid_constant__ KdaParams p, const __grid_constant__ SlotInput in,
                     KdaRow* rows, StatusWord* status) {
  auto& shared = *shared_memory<Shared>();
  if (thread_index() == 0) shared.lowest_fault = INT64_MAX;
  Finding finding;
  for (std::int32_t n = thread_index(); n < p.count; n += threads) {
    rows[n] = own_row(p, in, n, length_of(p, n), finding);
  }
  const std::int64_t slots = in.slots.write.data != nullptr ? in.write_rows : 0;
  for (std::int64_t first = 0; first < slots; first += range_slots) {
    settle_range(p, in, first, rows, shared, finding);
  }
  for (std::int32_t n = thread_index(); n < p.count; n += threads) {
    if (rows[n].skipped != 0) rows[n].initial = rows[n].final = -1;
  }
  __syncthreads();
  report(finding, shared.lowest_fault, status);
}

}  // namespace

void launch_kda_slots(const KdaParams& p, const KdaSlotInput& slots, KdaRow* rows,
                      StatusWord* status, cudaStream_t stream) {
  const SlotInput in(p, slots);
  launch("kda slots", kda_slots_kernel, 1, threads, sizeof(Shared), stream, p, in, rows, status);
}

}  // namespace packattn::cuda
