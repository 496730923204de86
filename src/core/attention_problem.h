// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "packattn/attention.h"

namespace packattn {

/// Keys [begin, end) of one sequence.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const { return begin >= end; }
};

/// Causal mask and window as one rule: the keys a row sees are always one interval, and both its
/// ends only grow with the row.
struct MaskRule {
  // A quarter of the range, so that row + shift + bound cannot overflow.
  static constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 4;

  std::int64_t left = unlimited;
  std::int64_t right = unlimited;  ///< causal is right = 0
  Align align = Align::bottom_right;

  std::int64_t shift(const Sequence& s) const {
    return align == Align::bottom_right ? s.k_length - s.q_length : 0;
  }
  KeyRange visible(const Sequence& s, std::int64_t row) const {
    const std::int64_t diagonal = row + shift(s);
    return {std::max<std::int64_t>(0, diagonal - left), std::min(s.k_length, diagonal + right + 1)};
  }
  friend bool operator==(const MaskRule&, const MaskRule&) = default;
};

/// What a softmax attention call computes, in numbers that are all legal. Equal problems on
/// equal lengths have equal plans.
struct AttentionProblem {
  DType dtype = DType::f32;      ///< of q, k and v
  DType out_dtype = DType::f32;  ///< dtype, or f32
  Device device;
  std::int64_t rows_q = 0;  ///< of the tensors: with spare capacity the boundaries need fewer
  std::int64_t rows_k = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_k = 0;
  std::int64_t head_dim = 0;   ///< D
  std::int64_t value_dim = 0;  ///< Dv
  double scale = 1;
  double softcap = 0;
  MaskRule mask;
  bool alibi = false;
  bool sinks = false;
  bool lse = false;
  bool paged = false;
  std::int64_t page_size = 0;

  std::int64_t group() const { return heads_q / heads_k; }
  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

/// Everything an implementation gets: legal by construction, nothing left to check.
struct AttentionCall {
  const AttentionArgs& args;
  const AttentionOptions& options;  ///< for alibi_slopes and sinks; the rest is in `problem`
  const AttentionProblem& problem;
  const PackedBatch& batch;
};

}  // namespace packattn
