// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "packattn/packattn.h"

namespace packattn::cli {

constexpr Op all_ops[]{Op::attention, Op::kda_recurrent,     Op::kda_chunk,     Op::kda_gate,
                       Op::l2norm,    Op::short_convolution, Op::gated_rms_norm};

/// One call of an operation, as a file or a description gives it. The views borrow from the input.
struct Call {
  Op op = Op::attention;
  AttentionArgs attention = {};
  AttentionOptions attention_options = {};
  KdaArgs kda = {};
  KdaOptions kda_options = {};
  KdaGateArgs gate = {};
  KdaGateOptions gate_options = {};
  L2NormArgs l2norm = {};
  L2NormOptions l2norm_options = {};
  ShortConvolutionArgs convolution = {};
  ShortConvolutionOptions convolution_options = {};
  GatedRmsNormArgs rms_norm = {};
  GatedRmsNormOptions rms_norm_options = {};
  BatchSpec spec = {};
  bool has_batch = false;  ///< boundaries were given; KDA also runs without
  Context context = {};
  Device device = {};  ///< where the call runs; its tensors are copied there and back

  // What the command line decides about outputs.
  bool lse = true;
  bool final_state = false;
  bool chunk_states = false;
  bool residual_out = false;
  bool fp32_out = false;

  bool is_kda() const { return op == Op::kda_recurrent || op == Op::kda_chunk; }
  /// The tensor whose rows the call is about, and its name.
  const TensorView& input() const;
  const char* input_name() const;
  /// The state to be updated in place; null where the operation has none.
  TensorView* state();
};

std::vector<Fault> check(const Call& call);
std::vector<Verdict> why(const Call& call, const PackedBatch* batch);
void run(const Call& call, const PackedBatch* batch);

/// The batch of a call that was checked; none for KDA without boundaries, nor for norms and gates.
std::optional<PackedBatch> make_batch(const Call& call);

/// "attention: 27 sequences, 893 query and 893 key tokens, q [893, 12, 32] fp32"
std::string describe(const Call& call, const PackedBatch* batch);

/// A view that is never dereferenced: every call gives another aligned address, far from all
/// others.
TensorView imaginary(DType dtype, Device device, const std::vector<std::int64_t>& shape);
std::vector<std::int64_t> shape_of(const TensorView& tensor);
/// Sequences of the call, 0 if its boundaries are wrong.
std::int64_t sequences_of(const Call& call);

/// Puts the call's output tensors in place, before they have memory: address space that nothing
/// reads, so that a call can be checked without allocating for it. Returns them by name.
std::map<std::string, TensorView*> place_outputs(Call& call);

/// The same for the neighbours of KDA: gate, norms, short convolution.
bool is_layer(Op op);
std::map<std::string, TensorView*> place_layer_outputs(Call& call);
std::vector<Fault> check_layer(const Call& call);
std::vector<Verdict> why_layer(const Call& call, const PackedBatch* batch);
void run_layer(const Call& call, const PackedBatch* batch);

}  // namespace packattn::cli
