// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/batch_state.h"

namespace packattn {

/// With the capacity option, output rows that belong to no sequence are defined: zero, and -inf in
/// the lse. Host memory only.
/// `rows` is the dimension of `out` that counts tokens; `lse` is [heads, tokens] or absent.
void clear_unowned_rows(const detail::BatchState& batch, const TensorView& out, int rows,
                        const TensorView& lse);

}  // namespace packattn
