// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda.h"
#include "cuda/simt_attention.h"

namespace packattn::cuda {

// Best first.
std::span<const AttentionImplementation> attention() {
  static const AttentionImplementation rows[] = {simt_attention()};
  return rows;
}
std::span<const KdaImplementation> kda_recurrent() { return {}; }
std::span<const KdaImplementation> kda_chunk() { return {}; }
std::span<const KdaImplementation> kda_gate() { return {}; }
std::span<const L2NormImplementation> l2norm() { return {}; }
std::span<const ShortConvolutionImplementation> short_convolution() { return {}; }
std::span<const GatedRmsNormImplementation> gated_rms_norm() { return {}; }

}  // namespace packattn::cuda
