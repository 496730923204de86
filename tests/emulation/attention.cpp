// SPDX-License-Identifier: Apache-2.0
// Tensor cores are not emulated: in place of the kernels' row, one that says so.
#include "cuda/simt_attention.h"
#include "errors/fault_list.h"

namespace packattn::cuda {

AttentionImplementation simt_attention() {
  constexpr const char* name = "simt/attention";
  const auto decline = [](const AttentionCall&) -> std::optional<Fault> {
    return make_fault(Code::option_unsupported, {.argument = name, .value = "emulated threads"});
  };
  return {.name = name, .decline = decline, .plan = nullptr, .run = nullptr, .on_host = false};
}

}  // namespace packattn::cuda
