// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "cuda/cuda.h"
#include "ops/lists.h"

namespace packattn {

std::vector<std::string> implementations(Op op) {
  std::vector<std::string> names;
  const auto collect = [&](const auto& list) {
    for (const auto& row : list) names.emplace_back(row.name);
  };
  switch (op) {
    case Op::attention: collect(attention_list()); break;
    case Op::kda_recurrent:
    case Op::kda_chunk: collect(kda_list(op)); break;
    case Op::kda_gate: collect(gate_list()); break;
    case Op::l2norm: collect(l2norm_list()); break;
    case Op::short_convolution: collect(short_convolution_list()); break;
    case Op::gated_rms_norm: collect(gated_rms_norm_list()); break;
  }
  return names;
}

std::optional<Fault> last_status(Device device, void* stream) {
  return cuda::take_status(device, stream);
}

}  // namespace packattn
