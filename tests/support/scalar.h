// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "packattn/tensor.h"

// Element conversions written from the definitions of the formats, on purpose without the
// library's own: a wrong conversion there must not hide here.

namespace packattn::test {

/// The stored element as a number. Exact for every type but i64 above 2^53.
double decode(DType dtype, const std::byte* element);

/// Stores a number, rounded once to nearest, ties to even.
void encode(DType dtype, std::byte* element, double value);

/// The nearest number that the type can hold.
double rounded(DType dtype, double value);

}  // namespace packattn::test
