// SPDX-License-Identifier: Apache-2.0
#include "core/finish_sequences.h"

#include "core/strided_copy.h"

namespace packattn {

void pass_states_through(std::span<const KdaSequence> sequences, const TensorView& initial,
                         const TensorView& final) {
  for (const KdaSequence& s : sequences) {
    if (s.length > 0 || s.final < 0) continue;
    std::byte* to = at(final, s.final);
    if (s.initial < 0) {
      zero_inner(final, 1, to);
    } else if (const std::byte* from = at(initial, s.initial); from != to) {
      copy_inner(initial, 1, from, final, 1, to);
    }
  }
}

void clear_skipped_rows(std::span<const KdaSequence> sequences, const TensorView& out,
                        int token_dim) {
  const auto bytes = static_cast<std::int64_t>(size_of(out.dtype()));
  for (const KdaSequence& s : sequences) {
    if (!s.skipped) continue;
    const std::int64_t row = token_dim == 0 ? 0 : s.row * out.stride(0);
    for (std::int64_t t = s.start; t < s.start + s.length; ++t) {
      zero_inner(out, token_dim + 1,
                 out.as<std::byte>() + bytes * (row + t * out.stride(token_dim)));
    }
  }
}

}  // namespace packattn
