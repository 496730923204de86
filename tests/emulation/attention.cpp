// SPDX-License-Identifier: Apache-2.0
// Tensor cores are not emulated: in place of the kernels' rows, some that say so.
#include "cuda/simt_attention.h"
#include "cuda/sm90/sm90.h"
#include "errors/fault_list.h"

namespace packattn::cuda {
namespace {

template <class Call>
Implementation<Call> absent(std::string_view name) {
  const auto decline = [](const Call&) -> std::optional<Fault> {
    return make_fault(Code::option_unsupported,
                      {.argument = "a kernel of tensor cores", .value = "emulated threads"});
  };
  return {.name = name, .decline = decline, .plan = nullptr, .run = nullptr, .on_host = false};
}

}  // namespace

AttentionImplementation simt_attention() { return absent<AttentionCall>("simt/attention"); }
AttentionImplementation sm90::attention_by_length() {
  return absent<AttentionCall>("sm90/attention");
}
AttentionImplementation sm90::attention_forward() {
  return absent<AttentionCall>("sm90/attention_forward");
}
KdaImplementation sm90::kda_chunk() { return absent<KdaCall>("sm90/kda_chunk"); }

}  // namespace packattn::cuda
