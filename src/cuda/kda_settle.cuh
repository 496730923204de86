// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/boundaries.cuh"
#include "cuda/kda_own_slots.cuh"

// What the planner and kda_slots find out for all sequences, found out inside a decode kernel: with
// few sequences that is one pass over their boundaries and slots, while states are on their way,
// instead of two launches before it. Slots are one to a sequence and serve both sides, or there are
// none.

namespace packattn::cuda::kda_settle {

/// Boundaries and slots as the call gave them.
struct Input {
  SlotInput slots;
  bool resolve;  ///< there are slots
  bool capacity;
  DeviceBoundaries boundaries;  ///< no data if the schedule is ready, and in the [B, T] form
  std::int64_t rows;            ///< of the tensors
  StatusWord* status;
};

/// Slots whose users a block can tell apart: 8 KiB of shared memory.
constexpr std::int64_t most_slots = kda_step_slots;

struct Shared { unsigned used[most_slots / 32]; };

/// A position's sequence, and the rows before it that belong to nobody.
struct Settled {
  KdaSequenceView s;
  Gap gap;
  bool valid;
};

/// Position n, by the planner's rule: what is read one after the other only if an entry is wrong.
__device__ inline Settled scan(const KdaParams& p, const Input& in, std::int32_t n,
                               Finding& finding) {
  Settled result{.s = {.row = 0, .start = 0, .n = n, .length = 0, .state = {}},
                 .gap = {0, in.rows},
                 .valid = false};
  std::int64_t largest = 0;
  std::int64_t owned = 0;
  Finding ignored;
  for (std::int32_t m = 0; m < p.count && m <= n; ++m) {
    std::int64_t start = 0;
    std::int64_t length = 0;
    const bool valid = read_side(in.boundaries, m, in.rows, largest, StatusArgument::cu_seqlens_q,
                                 start, length, m == n ? finding : ignored);
    if (m == n) {
      result.valid = valid;
      result.s.start = valid ? start : owned;
      result.s.length = valid ? static_cast<std::int32_t>(length) : 0;
      result.gap.end = result.s.start;
    } else if (valid) {
      owned = max(owned, start + length);
    }
    const std::int64_t entry = read_boundary(in.boundaries, m);
    if (entry <= in.rows) largest = max(largest, entry);
  }
  result.gap.begin = owned;
  return result;
}

/// Without branches, so that nothing waits for the slot before boundaries are asked for too.
__device__ inline KdaRow row_of(const KdaParams& p, const Input& in, std::int32_t n) {
  if (!in.resolve) return kda_sequence_rows(p, n);
  const std::int64_t slot = read_slot(in.slots.slots.read, n, 0);
  const bool good = slot != p.null_slot && slot >= 0 && slot < in.slots.read_rows;
  const std::int64_t row = good ? slot : -1;
  return {row, row, good ? 0 : 1};
}

/// Position n if every entry is right.
__device__ inline Settled glimpse(const KdaParams& p, const Input& in, std::int32_t n) {
  Settled x{.s = {.row = 0, .start = 0, .n = n, .length = 0, .state = {-1, -1, 0}},
            .gap = {0, 0},
            .valid = n < p.count};
  if (n < p.count) x.s.state = row_of(p, in, n);
  if (in.boundaries.data != nullptr) {
    x.s.start = read_boundary(in.boundaries, n);
    const std::int64_t end = n < p.count ? read_boundary(in.boundaries, n + 1) : in.rows;
    // Whatever the entries say, only rows of the tensors are read.
    const bool good = x.s.start >= 0 && x.s.start <= end && end <= in.rows;
    if (n < p.count) x.s.length = good ? static_cast<std::int32_t>(end - x.s.start) : 0;
    else x.gap = {x.s.start, end};
  } else if (p.batch.sequences != nullptr) {
    x.gap = p.batch.gaps[n];
    if (n < p.count) {
      x.s.start = p.batch.sequences[n].q_start;
      x.s.length = p.batch.sequences[n].q_length;
    }
  } else {
    x.s.row = n;
    x.s.length = p.length;
  }
  return x;
}

/// Whether anything in the batch gives a reason to look closer: boundaries that do not rise, a slot
/// that is none or that two sequences name. Every thread of the block calls it.
__device__ inline bool suspicious(const KdaParams& p, const Input& in, Shared& shared) {
  if (!in.resolve && in.boundaries.data == nullptr) return false;
  bool found = false;
  if (in.resolve) {
    for (int i = thread_index(); i < (in.slots.read_rows + 31) / 32; i += block_threads()) {
      shared.used[i] = 0;
    }
    __syncthreads();
    for (std::int32_t m = thread_index(); m < p.count; m += block_threads()) {
      const std::int64_t slot = read_slot(in.slots.slots.read, m, 0);
      if (slot == p.null_slot) continue;
      if (slot < 0 || slot >= in.slots.read_rows) {
        found = true;
        continue;
      }
      const unsigned bit = 1U << (slot % 32);
      found = found || (atomicOr(&shared.used[slot / 32], bit) & bit) != 0;
    }
  }
  if (in.boundaries.data != nullptr) {
    for (std::int32_t m = thread_index(); m <= p.count; m += block_threads()) {
      const std::int64_t entry = read_boundary(in.boundaries, m);
      const std::int64_t before = m > 0 ? read_boundary(in.boundaries, m - 1) : 0;
      found = found || entry < before || entry > in.rows || (m == 0 && entry != 0);
      found = found || (m == p.count && entry < in.rows && !in.capacity);
    }
  }
  return __syncthreads_or(found ? 1 : 0) != 0;
}

/// One of many blocks writes the status word. Findings are rare: nobody waits in a call without.
static __device__ unsigned status_taken = 0;
__device__ inline void report_alone(const Finding& finding, StatusWord* status) {
  if (finding.code == 0) return;
  while (atomicExch(&status_taken, 1U) != 0) {
  }
  __threadfence_system();
  write_status(finding, status);
  __threadfence_system();
  atomicExch(&status_taken, 0U);
}

/// Position n in a batch where something is wrong: the planner's rule and that of kda_slots. Every
/// lane of a warp calls it; `reports`: this warp is the one that speaks for the position. Out of
/// line, because the usual call is faster if it need not step over all this.
__device__ __noinline__ inline void look_closer(const KdaParams& p, const Input& in, std::int32_t n,
                                                bool reports, Settled& x) {
  Finding finding;
  if (in.boundaries.data != nullptr) {
    const KdaRow row = x.s.state;
    x = scan(p, in, n, finding);
    x.s.state = row;
    const std::int64_t end = read_boundary(in.boundaries, p.count);
    if (n == p.count && end < in.rows && !in.capacity) {
      finding.note(n, StatusArgument::cu_seqlens_q, Code::rows_after_end, end);
    }
  }
  if (in.resolve && n < p.count) {
    const std::int64_t own = read_slot(in.slots.slots.read, n, 0);
    if (own != p.null_slot && x.s.state.skipped != 0) {
      finding.note(n, StatusArgument::slots, Code::slot_range, own);
    }
    int others = 0;
    for (std::int32_t m = lane_index(); m < p.count; m += 32) {
      others += m != n && read_slot(in.slots.slots.read, m, 0) == own ? 1 : 0;
    }
    if (warp_sum(others) > 0 && x.s.state.skipped == 0) {
      finding.note(n, StatusArgument::slots, Code::slot_duplicate, own);
      x.s.state = {-1, -1, 1};
    }
  }
  if (reports && lane_index() == 0) report_alone(finding, in.status);
}

}  // namespace packattn::cuda::kda_settle
