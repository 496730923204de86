// SPDX-License-Identifier: Apache-2.0
#include "core/unowned_rows.h"

#include <algorithm>
#include <limits>

#include "core/strided_copy.h"

namespace packattn {
namespace {

void clear(const TensorView& out, int rows, const TensorView& lse, std::int64_t begin,
           std::int64_t end) {
  const std::int64_t step = out.stride(rows) * static_cast<std::int64_t>(size_of(out.dtype()));
  for (std::int64_t row = begin; row < end; ++row) {
    zero_inner(out, rows + 1, out.as<std::byte>() + row * step);
    if (!lse.present()) continue;
    for (std::int64_t head = 0; head < lse.size(0); ++head) {
      lse.as<float>()[head * lse.stride(0) + row * lse.stride(1)] =
          -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

void clear_unowned_rows(const detail::BatchState& batch, const TensorView& out, int rows,
                        const TensorView& lse) {
  if (!batch.capacity || !out.present()) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> owned;
  for (const Sequence& s : batch.sequences) {
    if (s.q_length > 0) owned.emplace_back(s.q_start, s.q_start + s.q_length);
  }
  std::sort(owned.begin(), owned.end());
  std::int64_t next = 0;
  for (const auto& [begin, end] : owned) {
    clear(out, rows, lse, next, begin);
    next = end;
  }
  clear(out, rows, lse, next, out.size(rows));
}

}  // namespace packattn
