// SPDX-License-Identifier: Apache-2.0
#include "faults.h"

namespace packattn::python {

tvm::ffi::Any refusal(const std::vector<Fault>& faults) {
  return tvm::ffi::Array<tvm::ffi::String>{render(faults), to_json(faults)};
}

}  // namespace packattn::python
