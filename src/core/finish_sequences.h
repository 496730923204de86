// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "core/kda_problem.h"

namespace packattn {

// What an operation with states owes its sequences and that needs no arithmetic.

/// Without tokens a state moves over bit for bit, or becomes 0 where there is none to start from.
void pass_states_through(std::span<const KdaSequence> sequences, const TensorView& initial,
                         const TensorView& final);

/// The output rows of sequences that the null slot skips become 0. `out` is [T, ...] with
/// `token_dim` 0, or [B, T, ...] with 1.
void clear_skipped_rows(std::span<const KdaSequence> sequences, const TensorView& out,
                        int token_dim);

}  // namespace packattn
