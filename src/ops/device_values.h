// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packattn/attention.h"
#include "packattn/kda.h"

#include "core/batch_state.h"
#include "core/implementation_table.h"

namespace packattn {

/// Check level `full` of a call on a device: boundaries, block tables, slots and gates are read
/// back and looked at as the host's own would be, host copies compared with their originals. One
/// copy a tensor and one wait for the stream; the gates are by far the largest.
void check_device_values(const AttentionArgs& args, const detail::BatchState& batch,
                         const AttentionOptions& options, void* stream, FaultList& faults);
/// Null `batch` is the [B, T] form.
void check_device_values(Op op, const KdaArgs& args, const detail::BatchState* batch,
                         const KdaOptions& options, void* stream, FaultList& faults);

}  // namespace packattn
