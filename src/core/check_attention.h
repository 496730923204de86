// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/attention_problem.h"
#include "core/batch_state.h"
#include "errors/fault_list.h"

namespace packattn {

/// Checks tensors, options and their fit with the batch, adding every fault, and writes the call
/// down as numbers. `batch` is null when the boundaries themselves could not be parsed.
/// The problem is meaningful only if no fault was added.
AttentionProblem check_attention_call(const AttentionArgs& args, const detail::BatchState* batch,
                                      const AttentionOptions& options, FaultList& faults);

/// Stream-independent settings: threads and the workspace's alignment.
void check_context(const Context& context, FaultList& faults);

/// The same for an operation that has no list: a forced name names nothing.
void check_context_without_list(std::string_view op, const Context& context, FaultList& faults);

/// The device is one that packattn has kernels for at all.
bool check_device(std::string_view name, Device device, FaultList& faults);

/// Rows of a tensor against the boundaries of its side: PA2006, PA2008, PA2018.
void check_rows(std::string_view name, std::int64_t rows, const detail::BatchSide& side,
                bool capacity, FaultList& faults);

/// The batch's boundaries can be used beside tensors on this device.
void check_batch_device(const detail::BatchState& batch, Device device, FaultList& faults);

}  // namespace packattn
