// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "core/layer_calls.h"
#include "core/select.h"

namespace packattn {

/// The ordered implementation lists, defined beside the operation they belong to.
ImplementationList<AttentionCall> attention_list();
ImplementationList<KdaCall> kda_list(Op op);
ImplementationList<KdaCall> gate_list();
ImplementationList<L2NormCall> l2norm_list();
ImplementationList<ShortConvolutionCall> short_convolution_list();
ImplementationList<GatedRmsNormCall> gated_rms_norm_list();

/// The rows for devices and for the CPU and, at the end, the reference.
template <class Call>
std::vector<Implementation<Call>> with_reference(std::span<const Implementation<Call>> device,
                                                 std::span<const Implementation<Call>> vectorised,
                                                 const Implementation<Call>& reference) {
  std::vector<Implementation<Call>> rows(device.begin(), device.end());
  rows.insert(rows.end(), vectorised.begin(), vectorised.end());
  rows.push_back(reference);
  return rows;
}

}  // namespace packattn
