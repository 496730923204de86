// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "core/batch_state.h"
#include "core/layer_calls.h"
#include "errors/fault_list.h"

namespace packattn {

// Each adds every fault of its call. What is returned means something only if there was none.

/// g, A_log, dt_bias and out as a KDA problem: value heads, key size, gate kind, batch and tokens.
KdaProblem check_kda_gate_call(const KdaGateArgs& args, const KdaGateOptions& options,
                               FaultList& faults);
LayerProblem check_l2norm_call(const L2NormArgs& args, const L2NormOptions& options,
                               FaultList& faults);
LayerProblem check_gated_rms_norm_call(const GatedRmsNormArgs& args,
                                       const GatedRmsNormOptions& options, FaultList& faults);

struct CheckedConvolution {
  LayerProblem problem;
  std::int64_t taps = 0;  ///< W; 0 without a weight
  std::vector<KdaSequence> sequences;
  TensorView initial, final;
};
CheckedConvolution check_short_convolution_call(const ShortConvolutionArgs& args,
                                                const detail::BatchState& batch,
                                                const ShortConvolutionOptions& options,
                                                FaultList& faults);

}  // namespace packattn
