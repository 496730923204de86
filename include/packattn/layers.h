// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "packattn/implementation.h"
#include "packattn/kda.h"
#include "packattn/packed.h"
#include "packattn/tensor.h"

// What stands beside Kimi Delta Attention in a layer: the gate as a tensor, the norms, the short
// convolution. The same contract as everywhere: every fault at once (Error, PA1xxx to PA6xxx)
// before anything runs, fp32 arithmetic or better, outputs rounded once, and a row's bits depend on
// that row and its own sequence alone. Inputs and outputs are fp32, fp16 or bf16 with any strides
// whose last is 1; an output may be fp32 whatever the input. No output shares memory with an input.
// Each check_... lists the faults without running; each why_... asks every implementation about a
// call that is legal.

namespace packattn {

/// The log decay that a KDA call would use, as a tensor: kinds softplus and bounded of GateKind.
struct KdaGateArgs {
  TensorView g = {};        ///< [B, T, HV, K]
  TensorView A_log = {};    ///< [HV] fp32; optional for the bounded kind
  TensorView dt_bias = {};  ///< [HV, K] or [HV * K] fp32; optional
  TensorView out = {};      ///< [B, T, HV, K] g's dtype or fp32
};
struct KdaGateOptions {
  GateKind gate = GateKind::softplus;
  double lower_bound = -5;  ///< of the bounded kind; finite and below 0
};
PACKATTN_EXPORT void kda_gate(const KdaGateArgs& args, const KdaGateOptions& options = {},
                              const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_kda_gate(const KdaGateArgs& args,
                                                  const KdaGateOptions& options = {},
                                                  const Context& context = {});
PACKATTN_EXPORT std::vector<Verdict> why_kda_gate(const KdaGateArgs& args,
                                                  const KdaGateOptions& options = {},
                                                  const Context& context = {});

/// out = x / sqrt(sum x^2 + eps) along the last dimension, of any size.
struct L2NormArgs {
  TensorView x = {};    ///< [..., D], rank 1 to 8
  TensorView out = {};  ///< x's shape; x's dtype or fp32
};
struct L2NormOptions { double eps = 1e-6; };
PACKATTN_EXPORT void l2norm(const L2NormArgs& args, const L2NormOptions& options = {},
                            const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_l2norm(const L2NormArgs& args,
                                                const L2NormOptions& options = {},
                                                const Context& context = {});
PACKATTN_EXPORT std::vector<Verdict> why_l2norm(const L2NormArgs& args,
                                                const L2NormOptions& options = {},
                                                const Context& context = {});

/// Depthwise causal convolution along each sequence of a packed batch:
///   out[t, c] = f(bias[c] + sum_i weight[c, i] x[t - W + 1 + i, c]),  f the identity or silu,
/// where positions before the sequence come from its state, the W - 1 inputs before it, oldest
/// first.
struct ShortConvolutionArgs {
  TensorView x = {};       ///< [T, D]
  TensorView weight = {};  ///< [D, W] x's dtype or fp32, W at least 1
  TensorView bias = {};    ///< [D] x's dtype or fp32; optional
  TensorView out = {};     ///< [T, D] x's dtype or fp32
  // As in KdaArgs: one state for both sides, updated in place, or one to read (zeros without) and
  // one to write. [N, D, W - 1], or [slots, D, W - 1] with slots; x's dtype or fp32.
  TensorView state = {}, initial_state = {}, final_state = {};
  TensorView slots = {};  ///< [N] int32 or int64
};
struct ShortConvolutionOptions {
  bool silu = false;
  std::int64_t null_slot = -1;  ///< this slot skips the sequence: output 0, no state touched
};
PACKATTN_EXPORT void short_convolution(const ShortConvolutionArgs& args, const PackedBatch& batch,
                                       const ShortConvolutionOptions& options = {},
                                       const Context& context = {});
PACKATTN_EXPORT void short_convolution(const ShortConvolutionArgs& args, const BatchSpec& spec,
                                       const ShortConvolutionOptions& options = {},
                                       const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_short_convolution(
    const ShortConvolutionArgs& args, const PackedBatch& batch,
    const ShortConvolutionOptions& options = {}, const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_short_convolution(
    const ShortConvolutionArgs& args, const BatchSpec& spec,
    const ShortConvolutionOptions& options = {}, const Context& context = {});
PACKATTN_EXPORT std::vector<Verdict> why_short_convolution(
    const ShortConvolutionArgs& args, const PackedBatch& batch,
    const ShortConvolutionOptions& options = {}, const Context& context = {});

/// Root-mean-square norm with a gate, along the last dimension:
///   r = x + residual;  out = (r / sqrt(mean r^2 + eps) * weight + bias) * f(gate),
/// f(z) = z sigmoid(z) (swish, also called silu) or sigmoid(z). What is absent drops out.
struct GatedRmsNormArgs {
  TensorView x = {};             ///< [..., D], rank 1 to 8
  TensorView gate = {};          ///< x's shape, x's dtype or fp32; optional
  TensorView weight = {};        ///< [D] x's dtype or fp32; optional
  TensorView bias = {};          ///< [D] x's dtype or fp32; optional
  TensorView residual = {};      ///< x's shape, x's dtype or fp32; optional
  TensorView out = {};           ///< x's shape; x's dtype or fp32
  TensorView residual_out = {};  ///< r for the next layer (prenorm); x's dtype or fp32; optional
};
enum class GateActivation { swish, sigmoid };
struct GatedRmsNormOptions {
  double eps = 1e-5;
  GateActivation activation = GateActivation::swish;
};
PACKATTN_EXPORT void gated_rms_norm(const GatedRmsNormArgs& args,
                                    const GatedRmsNormOptions& options = {},
                                    const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_gated_rms_norm(const GatedRmsNormArgs& args,
                                                        const GatedRmsNormOptions& options = {},
                                                        const Context& context = {});
PACKATTN_EXPORT std::vector<Verdict> why_gated_rms_norm(const GatedRmsNormArgs& args,
                                                        const GatedRmsNormOptions& options = {},
                                                        const Context& context = {});

}  // namespace packattn
