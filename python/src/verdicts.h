// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "call_reader.h"

namespace packattn::python {

/// Rows of an implementation's name and the JSON of the fault it declines with, empty if it can.
inline ffi::Any verdicts(const std::vector<Verdict>& all) {
  ffi::Array<ffi::Any> rows;
  for (const auto& v : all) {
    ffi::String declined;
    if (v.declined) declined = to_json(std::span(&*v.declined, 1));
    rows.push_back(ffi::Array<ffi::String>{v.implementation, declined});
  }
  return rows;
}

}  // namespace packattn::python
