// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>

#include "cuda/boundaries.cuh"
#include "cuda/kda_own_slots.cuh"

// What the planner and kda_slots find out for all sequences, found out by each block for its own:
// with few sequences that is one pass over their boundaries and slots, while the state is on its
// way, instead of two launches before it.

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

struct Shared { int disputed; };

/// A position's sequence, and the rows before it that belong to nobody.
struct Settled {
  KdaSequenceView s;
  Gap gap;
  bool valid;
};

constexpr int nothing = INT_MAX;
constexpr int initial_state = INT_MAX - 1;

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

/// `slots` of one column for both sides, or no slots: the usual ways to decode.
__device__ inline bool is_plain(const Input& in) {
  const KdaSlotInput& slots = in.slots.slots;
  return !in.resolve || (slots.shared && !slots.columns && slots.accepted.data == nullptr);
}
/// Without branches, so that nothing waits for the slot before boundaries are asked for too.
__device__ inline KdaRow plain_row(const KdaParams& p, const Input& in, std::int32_t n) {
  if (!in.resolve) return kda_sequence_rows(p, n);
  const std::int64_t slot = read_slot(in.slots.slots.read, n, 0);
  const bool good = slot != p.null_slot && slot >= 0 && slot < in.slots.read_rows;
  const std::int64_t row = good ? slot : -1;
  return {row, row, good ? 0 : 1};
}
__device__ __noinline__ inline KdaRow any_row(const KdaParams& p, const Input& in, std::int32_t n,
                                              std::int32_t length) {
  Finding ignored;
  KdaRow row = own_row(p, in.slots, n, length, ignored);
  if (row.skipped != 0) row.initial = row.final = -1;
  return row;
}

/// Position n if every entry is right: enough to fetch its first token and state, which nothing is
/// made of before `settle` has agreed.
__device__ inline Settled glimpse(const KdaParams& p, const Input& in, std::int32_t n) {
  Settled x{.s = {.row = 0, .start = 0, .n = n, .length = 0, .state = {-1, -1, 0}},
            .gap = {0, 0},
            .valid = n < p.count};
  const bool plain = is_plain(in);
  if (n < p.count && plain) x.s.state = plain_row(p, in, n);
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
  if (n < p.count && !plain) x.s.state = any_row(p, in, n, x.s.length);
  return x;
}

/// Whether this thread's share of all entries gives a reason to look closer: boundaries that do not
/// rise, a slot of n that is none or that others name too.
__device__ inline bool suspicious(const KdaParams& p, const Input& in, std::int32_t n) {
  bool found = false;
  if (in.boundaries.data != nullptr) {
    for (std::int32_t m = thread_index(); m <= p.count; m += block_threads()) {
      const std::int64_t entry = read_boundary(in.boundaries, m);
      const std::int64_t before = m > 0 ? read_boundary(in.boundaries, m - 1) : 0;
      found = found || entry < before || entry > in.rows || (m == 0 && entry != 0);
      found = found || (m == p.count && entry < in.rows && !in.capacity);
    }
  }
  if (!in.resolve || n >= p.count) return found;
  if (!in.slots.slots.shared) return true;
  const KdaSlotView& slots = in.slots.slots.read;
  for (std::int64_t c = 0; c < slots.columns; ++c) {
    const std::int64_t own = read_slot(slots, n, c);
    if (own == p.null_slot) continue;
    found = found || own < 0 || own >= in.slots.read_rows;
    for (std::int32_t m = thread_index(); m < p.count; m += block_threads()) {
      for (std::int64_t k = 0; k < slots.columns; ++k) {
        found = found || (read_slot(slots, m, k) == own && (m != n || k != c));
      }
    }
  }
  const KdaSlotView& accepted = in.slots.slots.accepted;
  if (accepted.data != nullptr) {
    const std::int64_t tokens = read_slot(accepted, n, 0);
    found = found || tokens < 1 || tokens > slots.columns;
  }
  return found;
}

/// The lowest of n's slots that somebody else uses too and somebody writes, among the sequences of
/// this thread; `initial_state` if that is what n only reads. Sequences with wrong slots are
/// skipped, so theirs do not count.
template <class Length>
__device__ int find_dispute(const KdaParams& p, const SlotInput& in, std::int32_t n,
                            const KdaRow& own, Length&& length_of) {
  if (own.skipped != 0) return nothing;
  const std::int64_t own_writes = writes_of(in, length_of(n));
  const auto own_slot = [&](std::int64_t c) { return read_slot(in.slots.write, n, c); };
  const auto lowest = [&](std::int64_t slot, std::int64_t but) {
    for (std::int64_t c = 0; c < own_writes; ++c) {
      if (c != but && own_slot(c) == slot) return static_cast<int>(c);
    }
    return nothing;
  };
  const bool writes_initial = lowest(own.initial, -1) != nothing;
  int found = nothing;
  Finding ignored;
  for (std::int32_t m = thread_index(); m < p.count; m += block_threads()) {
    const std::int32_t length = length_of(m);
    const KdaRow row = own_row(p, in, m, length, ignored);
    if (row.skipped != 0) continue;
    const std::int64_t writes = writes_of(in, length);
    bool writes_what_it_reads = false;
    for (std::int64_t c = 0; c < writes; ++c) {
      const std::int64_t slot = read_slot(in.slots.write, m, c);
      if (slot == p.null_slot) continue;
      writes_what_it_reads = writes_what_it_reads || slot == row.initial;
      found = min(found, lowest(slot, m == n ? c : -1));
      if (in.slots.in_place && m != n && slot == own.initial && !writes_initial) {
        found = min(found, initial_state);
      }
    }
    if (in.slots.in_place && m != n && row.initial >= 0 && !writes_what_it_reads) {
      found = min(found, lowest(row.initial, -1));
    }
  }
  return found;
}

__device__ inline void note_dispute(const SlotInput& in, std::int32_t n, std::int64_t initial,
                                    int found, Finding& finding) {
  const StatusArgument name = in.slots.shared ? StatusArgument::slots : StatusArgument::write_slots;
  if (found == initial_state) finding.note(n, name, Code::slot_read_and_written, initial);
  else finding.note(n, name, Code::slot_duplicate, read_slot(in.slots.write, n, found));
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

/// Where something looks wrong: the planner's rule and that of kda_slots, in full. Out of line: the
/// usual call is faster if it need not step over all this.
__device__ __noinline__ inline void look_closer(const KdaParams& p, const Input& in, std::int32_t n,
                                                Shared& shared, bool reports, Settled& x) {
  if (thread_index() == 0) shared.disputed = nothing;
  __syncthreads();
  Finding finding;
  Finding ignored;
  const bool scanned = in.boundaries.data != nullptr;
  // Only columns are counted in tokens.
  const auto length_of = [&](std::int32_t m) -> std::int32_t {
    if (!in.slots.slots.columns) return 0;
    return scanned ? scan(p, in, m, ignored).s.length : kda_sequence(p, m).length;
  };
  const bool resolve = in.resolve && n < p.count;
  if (resolve) {
    const KdaRow own = own_row(p, in.slots, n, length_of(n), ignored);
    const int found = find_dispute(p, in.slots, n, own, length_of);
    if (found != nothing) atomicMin(&shared.disputed, found);
  }
  __syncthreads();
  KdaRow row = x.s.state;
  if (scanned) x = scan(p, in, n, finding);
  if (scanned && n == p.count && !in.capacity) {
    const std::int64_t end = read_boundary(in.boundaries, n);
    if (end < in.rows) finding.note(n, StatusArgument::cu_seqlens_q, Code::rows_after_end, end);
  }
  if (resolve) {
    row = own_row(p, in.slots, n, x.s.length, finding);
    if (row.skipped == 0 && shared.disputed != nothing) {
      note_dispute(in.slots, n, row.initial, shared.disputed, finding);
      row.skipped = 1;
    }
    if (row.skipped != 0) row.initial = row.final = -1;
  }
  x.s.state = row;
  if (reports && thread_index() == 0) report_alone(finding, in.status);
}

/// Every thread of a block calls it with what it has glimpsed. True if that has changed. `reports`:
/// this block is the one that speaks for the sequence.
__device__ inline bool settle(const KdaParams& p, const Input& in, std::int32_t n, Shared& shared,
                              bool reports, Settled& x) {
  if (!in.resolve && in.boundaries.data == nullptr) return false;
  if (__syncthreads_or(suspicious(p, in, n) ? 1 : 0) == 0) return false;
  look_closer(p, in, n, shared, reports, x);
  return true;
}

}  // namespace packattn::cuda::kda_settle
