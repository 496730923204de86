// SPDX-License-Identifier: Apache-2.0
// The device implementations that run on emulated threads. Linked before the library, these lists
// take the place of the library's own.
#include "cuda/cuda.h"
#include "cuda/kda_params.h"
#include "cuda/layer_params.h"

namespace packattn::cuda {

std::span<const AttentionImplementation> attention() { return {}; }
std::span<const KdaImplementation> kda_recurrent() {
  static const KdaImplementation rows[] = {simt_kda_recurrent()};
  return rows;
}
std::span<const KdaImplementation> kda_chunk() {
  static const KdaImplementation rows[] = {simt_kda_chunk()};
  return rows;
}
std::span<const KdaImplementation> kda_gate() {
  static const KdaImplementation rows[] = {simt_kda_gate()};
  return rows;
}
std::span<const L2NormImplementation> l2norm() {
  static const L2NormImplementation rows[] = {simt_l2norm()};
  return rows;
}
std::span<const ShortConvolutionImplementation> short_convolution() {
  static const ShortConvolutionImplementation rows[] = {simt_short_convolution()};
  return rows;
}
std::span<const GatedRmsNormImplementation> gated_rms_norm() {
  static const GatedRmsNormImplementation rows[] = {simt_gated_rms_norm()};
  return rows;
}

}  // namespace packattn::cuda
