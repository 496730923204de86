// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kda_token.cuh"
#include "cuda/status.cuh"

// What a sequence's own slots say, without a look at those of others.

namespace packattn::cuda {

struct SlotInput {
  KdaSlotInput slots;
  std::int64_t read_rows, write_rows;  ///< of the pools; 0 without one

  SlotInput(const KdaParams& p, const KdaSlotInput& given)
      : slots(given),
        read_rows(p.initial.data != nullptr ? p.initial.rows : 0),
        write_rows(p.final.data != nullptr ? p.final.rows : 0) {}
};

/// Null, a row of the pool, or a fault.
struct Slot {
  std::int64_t row = -1;
  bool null = false;
  bool wrong = false;

  __device__ Slot(const KdaParams& p, const KdaSlotView& x, std::int32_t n, std::int64_t column,
                  std::int64_t rows, StatusArgument name, Finding& finding) {
    const std::int64_t slot = read_slot(x, n, column);
    null = slot == p.null_slot;
    wrong = !null && (slot < 0 || slot >= rows);
    if (wrong) finding.note(n, name, Code::slot_range, slot);
    if (!null && !wrong) row = slot;
  }
};

/// What sequence n starts from.
__device__ inline KdaRow start_of(const KdaParams& p, const SlotInput& in, std::int32_t n,
                                  Finding& finding) {
  const StatusArgument name = in.slots.shared ? StatusArgument::slots : StatusArgument::read_slots;
  KdaRow row{-1, -1, 0};
  if (in.read_rows == 0) return row;
  if (in.slots.read.data == nullptr) return {n, -1, 0};
  std::int64_t column = 0;
  if (in.slots.accepted.data != nullptr) {
    const std::int64_t tokens = read_slot(in.slots.accepted, n, 0);
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

/// How many slots a sequence with so many tokens writes.
__device__ inline std::int64_t writes_of(const SlotInput& in, std::int32_t length) {
  if (in.write_rows == 0 || in.slots.write.data == nullptr) return 0;
  return in.slots.columns ? length : 1;
}

/// The rows of sequence n as far as its own slots tell.
__device__ inline KdaRow own_row(const KdaParams& p, const SlotInput& in, std::int32_t n,
                                 std::int32_t length, Finding& finding) {
  const StatusArgument name = in.slots.shared ? StatusArgument::slots : StatusArgument::write_slots;
  KdaRow row = start_of(p, in, n, finding);
  if (in.write_rows == 0) return row;
  if (in.slots.write.data == nullptr) {
    if (!in.slots.columns) row.final = n;
    return row;
  }
  const std::int64_t writes = writes_of(in, length);
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

}  // namespace packattn::cuda
