// SPDX-License-Identifier: Apache-2.0
#include "core/strided_copy.h"

#include <cstring>

namespace packattn {
namespace {

/// True if the dimensions from `dim` on are one contiguous run.
bool contiguous_from(const TensorView& t, int dim) {
  std::int64_t expected = 1;
  for (int d = t.rank() - 1; d >= dim; --d) {
    if (t.size(d) != 1 && t.stride(d) != expected) return false;
    expected *= t.size(d);
  }
  return true;
}

std::size_t bytes_from(const TensorView& t, int dim) {
  std::size_t bytes = size_of(t.dtype());
  for (int d = dim; d < t.rank(); ++d) bytes *= static_cast<std::size_t>(t.size(d));
  return bytes;
}

std::int64_t step(const TensorView& t, int dim) {
  return t.stride(dim) * static_cast<std::int64_t>(size_of(t.dtype()));
}

}  // namespace

void copy_inner(const TensorView& from, int from_dim, const std::byte* source, const TensorView& to,
                int to_dim, std::byte* target) {
  if (contiguous_from(from, from_dim) && contiguous_from(to, to_dim)) {
    std::memcpy(target, source, bytes_from(from, from_dim));
    return;
  }
  for (std::int64_t i = 0; i < from.size(from_dim); ++i) {
    copy_inner(from, from_dim + 1, source + i * step(from, from_dim), to, to_dim + 1,
               target + i * step(to, to_dim));
  }
}

void zero_inner(const TensorView& to, int dim, std::byte* target) {
  if (contiguous_from(to, dim)) {
    std::memset(target, 0, bytes_from(to, dim));
    return;
  }
  for (std::int64_t i = 0; i < to.size(dim); ++i)
    zero_inner(to, dim + 1, target + i * step(to, dim));
}

}  // namespace packattn
