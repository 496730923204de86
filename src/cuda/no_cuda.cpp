// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda.h"
#include "errors/fault_list.h"

namespace packattn::cuda {

std::span<const AttentionImplementation> attention() { return {}; }
std::span<const KdaImplementation> kda_recurrent() { return {}; }
std::span<const KdaImplementation> kda_chunk() { return {}; }
std::span<const KdaImplementation> kda_gate() { return {}; }
std::span<const L2NormImplementation> l2norm() { return {}; }
std::span<const ShortConvolutionImplementation> short_convolution() { return {}; }
std::span<const GatedRmsNormImplementation> gated_rms_norm() { return {}; }
void copy_tokens(const TensorView& padded, const PackedBatch&, const TensorView&, Side, bool,
                 void*) {
  fail(Code::cuda_absent, {.argument = "padded", .value = to_string(padded.device())});
}
void merge_states(const MergeArgs& args, void*) {
  fail(Code::cuda_absent, {.argument = "out_a", .value = to_string(args.out_a.device())});
}
void read_back(void*, const void*, std::size_t, Device device, void*) {
  fail(Code::cuda_absent, {.argument = "q", .value = to_string(device)});
}
std::optional<Fault> take_status(Device, void*) { return {}; }

}  // namespace packattn::cuda
