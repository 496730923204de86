// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "packattn/tensor.h"

namespace packattn {

/// A tensor's element bytes at the start of its index [..] with the first `dims` indices given.
inline std::byte* at(const TensorView& t, std::int64_t i0, std::int64_t i1 = 0) {
  std::int64_t offset = i0 * t.stride(0);
  if (i1 != 0) offset += i1 * t.stride(1);
  return t.as<std::byte>() + offset * static_cast<std::int64_t>(size_of(t.dtype()));
}

/// Copies everything below the first dims of `from` and `to`, whose sizes and dtypes agree.
void copy_inner(const TensorView& from, int from_dim, const std::byte* source, const TensorView& to,
                int to_dim, std::byte* target);

/// Fills everything below the first `dim` dimensions with zero bytes.
void zero_inner(const TensorView& to, int dim, std::byte* target);

}  // namespace packattn
