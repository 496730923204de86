// SPDX-License-Identifier: Apache-2.0
// Which rows of the state pools every sequence reads and writes, from slots in device memory: the
// checks that the host makes where it sees the slots. A sequence with a wrong slot is skipped, and
// so are all users of a slot that two of them want to write, or one to write and another to read.
//
// One block. Two bits a slot in shared memory, written and disputed, for a range of slots at a
// time; nearly every pool fits in one range.
#include "cuda/kda_token.cuh"
#include "cuda/status.cuh"

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

struct Input {
  KdaSlotInput slots;
  std::int64_t read_rows, write_rows;  ///< of the pools; 0 without one
};

__device__ std::int64_t read(const KdaSlotView& x, std::int32_t n, std::int64_t column) {
  const std::int64_t at = n * x.sequence_stride + column * x.column_stride;
  return x.wide ? static_cast<const std::int64_t*>(x.data)[at]
                : static_cast<const std::int32_t*>(x.data)[at];
}

/// Null, a row of the pool, or a fault.
struct Slot {
  std::int64_t row = -1;
  bool null = false;
  bool wrong = false;

  __device__ Slot(const KdaParams& p, const KdaSlotView& x, std::int32_t n, std::int64_t column,
                  std::int64_t rows, StatusArgument name, Finding& finding) {
    const std::int64_t slot = read(x, n, column);
    null = slot == p.null_slot;
    wrong = !null && (slot < 0 || slot >= rows);
    if (wrong) finding.note(n, name, Code::slot_range, slot);
    if (!null && !wrong) row = slot;
  }
};

/// What sequence n starts from.
__device__ KdaRow start_of(const KdaParams& p, const Input& in, std::int32_t n, Finding& finding) {
  const StatusArgument name = in.slots.shared ? StatusArgument::slots : StatusArgument::read_slots;
  KdaRow row{-1, -1, 0};
  if (in.read_rows == 0) return row;
  if (in.slots.read.data == nullptr) return {n, -1, 0};
  std::int64_t column = 0;
  if (in.slots.accepted.data != nullptr) {
    const std::int64_t tokens = read(in.slots.accepted, n, 0);
    if (tokens < 1 || tokens > in.slots.read.columns) {
      finding.note(n, StatusArgument::num_accepted_tokens, Code::accepted_tokens_range, tokens);
      return {-1, -1, 1};
    }
    column = tokens - 1;
  }
  const Slot slot(p, in.slots.read, n, column, in.read_rows, name, finding);
  row.initial = slot.row;
  row.skipped = slot.null || slot.wrong ? 1 : 0;
  return row;
}

/// How many slots sequence n writes.
__device__ std::int64_t writes_of(const KdaParams& p, const Input& in, std::int32_t n) {
  if (in.write_rows == 0 || in.slots.write.data == nullptr) return 0;
  return in.slots.columns ? kda_sequence(p, n).length : 1;
}

/// The rows of sequence n as far as its own slots tell.
__device__ KdaRow own_row(const KdaParams& p, const Input& in, std::int32_t n, Finding& finding) {
  const StatusArgument name = in.slots.shared ? StatusArgument::slots : StatusArgument::write_slots;
  KdaRow row = start_of(p, in, n, finding);
  if (in.write_rows == 0) return row;
  if (in.slots.write.data == nullptr) {
    if (!in.slots.columns) row.final = n;
    return row;
  }
  const std::int64_t writes = writes_of(p, in, n);
  if (writes > in.slots.write.columns) {
    finding.note(n, name, Code::slot_columns, in.slots.write.columns);
    row.skipped = 1;
    return row;
  }
  for (std::int64_t c = 0; c < writes; ++c) {
    const Slot slot(p, in.slots.write, n, c, in.write_rows, name, finding);
    if (!in.slots.columns) row.final = slot.row;
    if (slot.wrong || (slot.null && !in.slots.columns)) row.skipped = 1;
  }
  return row;
}

/// Calls f(word, bit, slot) for the slots in range that sequence n writes.
template <class F>
__device__ void for_each_write(const KdaParams& p, const Input& in, std::int32_t n,
                               std::int64_t first, F&& f) {
  const std::int64_t writes = writes_of(p, in, n);
  for (std::int64_t c = 0; c < writes; ++c) {
    const std::int64_t slot = read(in.slots.write, n, c);
    if (slot == p.null_slot || slot < first || slot >= first + range_slots) continue;
    f(static_cast<int>((slot - first) / 32), 1U << ((slot - first) % 32), slot);
  }
}

/// Slots first .. first + range_slots: sequences that share one of them with a writer are skipped.
__device__ void settle_range(const KdaParams& p, const Input& in, std::int64_t first, KdaRow* rows,
                             Shared& shared, Finding& finding) {
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
    kda_slots_kernel(const __grid_constant__ KdaParams p, const __grid_constant__ Input in,
                     KdaRow* rows, StatusWord* status) {
  auto& shared = *shared_memory<Shared>();
  if (thread_index() == 0) shared.lowest_fault = INT64_MAX;
  Finding finding;
  for (std::int32_t n = thread_index(); n < p.count; n += threads) {
    rows[n] = own_row(p, in, n, finding);
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
  const Input in{slots, p.initial.data != nullptr ? p.initial.rows : 0,
                 p.final.data != nullptr ? p.final.rows : 0};
  launch("kda slots", kda_slots_kernel, 1, threads, sizeof(Shared), stream, p, in, rows, status);
}

}  // namespace packattn::cuda
