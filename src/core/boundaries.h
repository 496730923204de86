// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/batch_state.h"
#include "core/check_tensors.h"

// Readers of the forms in which boundaries come. Each adds its faults; a missing value means that
// nothing could be read, not that nothing was wrong with what was.

namespace packattn::detail {

/// A one-dimensional int32 or int64 tensor, widened. It has to be on the host.
std::optional<std::vector<std::int64_t>> read_integers(NamedView t, FaultList& faults);

/// Running ends: start at 0, never decrease. Boundaries on a device are read from their host copy;
/// without one, only their count is known and `state.host_known` becomes false.
std::optional<std::vector<std::int64_t>> read_cu_seqlens(NamedView cu, NamedView host,
                                                         BatchSide& side, BatchState& state,
                                                         FaultList& faults);

/// Lengths or starts: at least 0.
std::optional<std::vector<std::int64_t>> read_lengths(NamedView t, FaultList& faults);

/// cu_seqlens given together with lengths: they have to say the same.
void check_gaps(std::string_view cu_name, NamedView lengths, const BatchSide& side,
                FaultList& faults);

/// Ranges of rows that are written to must not share rows.
void check_overlap(std::string_view name, const BatchSide& side, FaultList& faults);

void read_padding_mask(NamedView mask, BatchSide& side, FaultList& faults);
void read_position_ids(NamedView ids, BatchSide& side, FaultList& faults);
void read_pages(NamedView seqlens_k, NamedView table, BatchState& state, FaultList& faults);

}  // namespace packattn::detail
