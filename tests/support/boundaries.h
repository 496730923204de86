// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "packattn/packed.h"

#include "support/guarded.h"

namespace packattn::test {

/// A one-dimensional boundary tensor; with stride 2 every second element of a wider one.
Guarded integers(DType dtype, const std::vector<std::int64_t>& values);
Guarded strided_integers(DType dtype, const std::vector<std::int64_t>& values);
TensorView strided_view(const Guarded& pairs);

/// Running ends: [0, n1, n1 + n2, ...]
std::vector<std::int64_t> running_ends(const std::vector<std::int64_t>& lengths);

/// Starts in a shuffled order with gaps of a few rows before, between and after the sequences.
struct Gaps {
  std::vector<std::int64_t> starts;
  std::int64_t rows = 0;
};
Gaps with_gaps(const std::vector<std::int64_t>& lengths, std::uint64_t seed);

/// [B, S] with the tokens at the end of even rows and at the start of odd ones.
Guarded padding_mask(const std::vector<std::int64_t>& lengths);

/// [T], counting up from 0 in each sequence.
Guarded position_ids(const std::vector<std::int64_t>& lengths);

}  // namespace packattn::test
