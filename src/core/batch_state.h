// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "packattn/packed.h"

#include "core/plan_cache.h"
#include "errors/fault_list.h"

namespace packattn::detail {

/// One side (queries or keys) of a batch as its description gave it.
struct BatchSide {
  const char* argument = "";         ///< the boundaries' name in faults
  std::int64_t count = -1;           ///< sequences; -1 if the boundaries could not be read
  std::vector<std::int64_t> starts;  ///< N
  std::vector<std::int64_t> lengths;
  std::int64_t rows = 0;  ///< one past the last row of any sequence
  bool exact = true;      ///< the tensor has to end where the boundaries end
  /// Padding mask form: where each packed row sits in the padded tensor, b * S + s.
  std::vector<std::int64_t> padded_rows;
  std::int64_t padded_shape[2] = {0, 0};
};

struct BatchState {
  std::int64_t size = 0;
  bool host_known = true;  ///< false: boundaries are only on a device, and only `device` is set
  bool shared = true;      ///< the key side is the query side
  bool paged = false;
  bool capacity = false;
  Device device;  ///< where the boundaries are, if not on the host
  BatchSide q, k;
  std::vector<Sequence> sequences;
  std::int64_t max_q = 0, max_k = 0;
  std::vector<std::int32_t> block_table;  ///< [N, pages_per_sequence]
  std::int64_t pages_per_sequence = 0;
  BatchSpec on_device;  ///< the caller's views, kept when they are on a device
  mutable PlanCache plans;

  const BatchSide& side(Side which) const { return which == Side::query || shared ? q : k; }
};

/// Reads a description, adding every fault. What could be read is filled in even then, so that
/// the tensors of the call can be checked against it.
void parse_batch(const BatchSpec& spec, BatchState& state, FaultList& faults);

}  // namespace packattn::detail
