// SPDX-License-Identifier: Apache-2.0
#include "call.h"

namespace packattn::cli {
namespace {

TensorView like(const TensorView& x, bool fp32) {
  return imaginary(fp32 ? DType::f32 : x.dtype(), x.device(), shape_of(x));
}

void place_convolution_outputs(Call& call, std::map<std::string, TensorView*>& outputs) {
  ShortConvolutionArgs& args = call.convolution;
  args.out = like(args.x, call.fp32_out);
  outputs["out"] = &args.out;
  if (args.state.present()) outputs["state"] = &args.state;
  const bool wanted = call.final_state || args.initial_state.present();
  if (args.state.present() || args.slots.present() || !wanted) return;
  const TensorView& from = args.initial_state.present() ? args.initial_state : args.x;
  std::vector<std::int64_t> shape = shape_of(args.initial_state);
  if (shape.empty() && args.x.rank() == 2 && args.weight.rank() == 2) {
    shape = {sequences_of(call), args.x.size(1), args.weight.size(1) - 1};
  }
  args.final_state = imaginary(from.dtype(), args.x.device(), shape);
  outputs["final_state"] = &args.final_state;
}

void place_rms_norm_outputs(Call& call, std::map<std::string, TensorView*>& outputs) {
  GatedRmsNormArgs& args = call.rms_norm;
  args.out = like(args.x, call.fp32_out);
  outputs["out"] = &args.out;
  if (!call.residual_out) return;
  // The sum keeps the precision of the residual that it goes on from.
  const bool fp32 = args.residual.present() && args.residual.dtype() == DType::f32;
  args.residual_out = like(args.x, fp32);
  outputs["residual_out"] = &args.residual_out;
}

}  // namespace

bool is_layer(Op op) {
  return op == Op::kda_gate || op == Op::l2norm || op == Op::short_convolution ||
         op == Op::gated_rms_norm;
}

std::map<std::string, TensorView*> place_layer_outputs(Call& call) {
  std::map<std::string, TensorView*> outputs;
  if (call.op == Op::short_convolution) {
    place_convolution_outputs(call, outputs);
  } else if (call.op == Op::gated_rms_norm) {
    place_rms_norm_outputs(call, outputs);
  } else {
    TensorView& out = call.op == Op::kda_gate ? call.gate.out : call.l2norm.out;
    out = like(call.input(), call.fp32_out);
    outputs["out"] = &out;
  }
  return outputs;
}

std::vector<Fault> check_layer(const Call& c) {
  switch (c.op) {
    case Op::kda_gate: return check_kda_gate(c.gate, c.gate_options, c.context);
    case Op::l2norm: return check_l2norm(c.l2norm, c.l2norm_options, c.context);
    case Op::short_convolution:
      return check_short_convolution(c.convolution, c.spec, c.convolution_options, c.context);
    default: return check_gated_rms_norm(c.rms_norm, c.rms_norm_options, c.context);
  }
}

std::vector<Verdict> why_layer(const Call& c, const PackedBatch* batch) {
  switch (c.op) {
    case Op::kda_gate: return why_kda_gate(c.gate, c.gate_options, c.context);
    case Op::l2norm: return why_l2norm(c.l2norm, c.l2norm_options, c.context);
    case Op::short_convolution:
      return why_short_convolution(c.convolution, *batch, c.convolution_options, c.context);
    default: return why_gated_rms_norm(c.rms_norm, c.rms_norm_options, c.context);
  }
}

void run_layer(const Call& c, const PackedBatch* batch) {
  switch (c.op) {
    case Op::kda_gate: kda_gate(c.gate, c.gate_options, c.context); return;
    case Op::l2norm: l2norm(c.l2norm, c.l2norm_options, c.context); return;
    case Op::short_convolution:
      short_convolution(c.convolution, *batch, c.convolution_options, c.context);
      return;
    default: gated_rms_norm(c.rms_norm, c.rms_norm_options, c.context);
  }
}

}  // namespace packattn::cli
