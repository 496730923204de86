// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda.h"
#include "cuda/kda_params.h"
#include "cuda/layer_params.h"
#include "cuda/simt_attention.h"
#include "cuda/sm90/sm90.h"

namespace packattn::cuda {

// Best first.
std::span<const AttentionImplementation> attention() {
  static const AttentionImplementation rows[] = {sm90::attention_by_length(),
                                                 sm90::attention_forward(), simt_attention()};
  return rows;
}
std::span<const KdaImplementation> kda_recurrent() {
  static const KdaImplementation rows[] = {simt_kda_recurrent()};
  return rows;
}
std::span<const KdaImplementation> kda_chunk() {
  static const KdaImplementation rows[] = {sm90::kda_chunk(), simt_kda_chunk()};
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
