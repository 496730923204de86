// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "core/attention_problem.h"
#include "cpu/attention_plan.h"
#include "cpu/attention_tile.h"

// How the tensors of a call look to the kernels of a tile.

namespace packattn::cpu {

ScoreRule score_rule(const AttentionProblem& problem);

/// Rows of K or V of one sequence and key head.
KeyRows key_rows(const AttentionCall& call, const TensorView& tensor, std::int64_t sequence,
                 std::int64_t head);

/// The rows of one work item for one key head.
void fill_rows(const AttentionCall& call, const Work& work, std::int64_t key_head,
               std::span<TileRow> rows);

}  // namespace packattn::cpu
