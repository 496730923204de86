// SPDX-License-Identifier: Apache-2.0
// The neighbours of KDA: legal calls, what spoils them, and how they are run.
#include <cmath>

#include "fuzz/mutations.h"
#include "fuzz/views.h"
#include "support/boundaries.h"

namespace packattn::test::fuzz {
namespace {

using Lengths = std::vector<std::int64_t>;

DType float_type(Random& random) {
  return random.pick(std::vector{DType::f32, DType::f32, DType::f16, DType::bf16});
}

void gate_call(Random& random, Call& call) {
  const DType dtype = float_type(random);
  const Lengths shape{random.between(1, 2), random.between(0, 4), random.between(1, 3), 8};
  call.tensors["g"] = {dtype, shape};
  call.tensors["out"] = {random.chance(0.3) ? DType::f32 : dtype, shape};
  call.kda.gate = random.chance(0.5) ? GateKind::softplus : GateKind::bounded;
  if (call.kda.gate == GateKind::softplus || random.chance(0.5)) {
    call.tensors["A_log"] = {DType::f32, {shape[2]}};
  }
  if (random.chance(0.5)) call.tensors["dt_bias"] = {DType::f32, {shape[2] * shape[3]}};
}

Lengths rows_of(Random& random) {
  Lengths shape;
  for (std::int64_t i = random.between(0, 3); i > 0; --i) shape.push_back(random.between(0, 3));
  shape.push_back(random.between(1, 40));
  return shape;
}

void norm_call(Random& random, Call& call) {
  const DType dtype = float_type(random);
  const Lengths shape = rows_of(random), channels{shape.back()};
  const auto beside = [&](const char* name, const Lengths& sizes, double chance) {
    if (random.chance(chance)) {
      call.tensors[name] = {random.chance(0.5) ? DType::f32 : dtype, sizes};
    }
  };
  call.tensors["x"] = {dtype, shape};
  call.tensors["out"] = {random.chance(0.3) ? DType::f32 : dtype, shape};
  if (call.kind == Kind::l2norm) return;
  beside("gate", shape, 0.6);
  beside("weight", channels, 0.6);
  beside("bias", channels, 0.3);
  beside("residual", shape, 0.4);
  beside("residual_out", shape, 0.4);
  if (random.chance(0.5)) call.activation = GateActivation::sigmoid;
}

void convolution_call(Random& random, Call& call) {
  Lengths lengths;
  for (std::int64_t n = random.between(0, 3); n > 0; --n) lengths.push_back(random.between(0, 5));
  const auto count = static_cast<std::int64_t>(lengths.size());
  const DType dtype = float_type(random), integer = random.chance(0.5) ? DType::i32 : DType::i64;
  const DType other = random.chance(0.5) ? DType::f32 : dtype;
  const std::int64_t width = random.between(1, 40), taps = random.between(1, 4);
  const Lengths ends = running_ends(lengths);
  if (random.chance(0.5)) call.integers["cu_seqlens_q"] = {.values = ends, .dtype = integer};
  else call.integers["lengths_q"] = {.values = lengths, .dtype = integer};
  call.tensors["x"] = {dtype, {ends.back(), width}};
  call.tensors["weight"] = {other, {width, taps}};
  if (random.chance(0.5)) call.tensors["bias"] = {other, {width}};
  call.tensors["out"] = {random.chance(0.3) ? DType::f32 : dtype, {ends.back(), width}};
  call.silu = random.chance(0.5);
  if (random.chance(0.2)) return;
  const bool pooled = random.chance(0.6);
  const std::int64_t rows = pooled ? count + 2 : count;
  const Lengths shape{rows, width, taps - 1};
  if (random.chance(0.6)) {
    call.tensors["state"] = {other, shape};
  } else {
    call.tensors["initial_state"] = call.tensors["final_state"] = {other, shape};
    // The pool that is read may have other rows than the one that is written.
    if (pooled) call.tensors["final_state"].shape[0] += 3;
  }
  if (!pooled) return;
  const auto order = random.permutation(rows);
  call.integers["slots"] = {.values = {order.begin(), order.begin() + count}, .dtype = integer};
}

}  // namespace

void random_layer(Random& random, Call& call) {
  call.boundaries = call.kind == Kind::short_convolution;
  if (call.kind == Kind::kda_gate) gate_call(random, call);
  else if (call.kind == Kind::short_convolution) convolution_call(random, call);
  else norm_call(random, call);
}

std::vector<Mutation> layer_mutations() {
  return {
      {"eps", Code::option_value,
       [](Call& call, Random& random) {
         call.eps = random.pick(std::vector{-1.0, std::nan(""), 1e39, 1e-45, 0.0, 2.0});
         return call.kind == Kind::l2norm || call.kind == Kind::gated_rms_norm;
       }},
      {"a gate that is given already", Code::option_value,
       [](Call& call, Random&) {
         call.kda.gate = GateKind::given;
         return call.kind == Kind::kda_gate;
       }},
      {"options", Code::option_value,
       [](Call& call, Random& random) {
         call.silu = !call.silu;
         call.activation = random.chance(0.5) ? GateActivation::sigmoid : GateActivation::swish;
         call.kda.null_slot = random.between(-1, 3);
         call.kda.lower_bound = random.chance(0.5) ? -0.5 : 0;
         return call.is_layer();
       }},
      {"taps", Code::tensor_shape,
       [](Call& call, Random& random) {
         Tensor* t = call.tensor("weight");
         if (t == nullptr || t->shape.size() != 2) return false;
         t->shape[1] = random.between(0, 5);
         return true;
       }},
      {"states, and slots on a device, without what they go with", Code::tensor_missing,
       [](Call& call, Random& random) {
         if (!call.is_kda() && call.kind != Kind::short_convolution) return false;
         for (auto& [name, values] : call.integers) {
           if (name.find("seqlens") == std::string::npos) values.device = {DeviceType::cuda, 0};
         }
         for (auto& [name, tensor] : call.tensors) tensor.device = {DeviceType::cuda, 0};
         if (random.chance(0.5)) call.tensors.erase(call.is_kda() ? "q" : "x");
         return true;
       }},
  };
}

namespace {

KdaGateArgs gate_args(const Views& v) { return {v["g"], v["A_log"], v["dt_bias"], v["out"]}; }
L2NormArgs l2norm_args(const Views& v) { return {v["x"], v["out"]}; }
ShortConvolutionArgs convolution_args(const Views& v) {
  return {.x = v["x"],
          .weight = v["weight"],
          .bias = v["bias"],
          .out = v["out"],
          .state = v["state"],
          .initial_state = v["initial_state"],
          .final_state = v["final_state"],
          .slots = v["slots"]};
}
GatedRmsNormArgs rms_norm_args(const Views& v) {
  return {.x = v["x"],
          .gate = v["gate"],
          .weight = v["weight"],
          .bias = v["bias"],
          .residual = v["residual"],
          .out = v["out"],
          .residual_out = v["residual_out"]};
}
KdaGateOptions gate_options(const Call& c) { return {c.kda.gate, c.kda.lower_bound}; }
ShortConvolutionOptions convolution_options(const Call& c) { return {c.silu, c.kda.null_slot}; }
GatedRmsNormOptions rms_norm_options(const Call& c) { return {c.eps, c.activation}; }

}  // namespace

std::vector<Fault> check_layer(const Call& c, const Views& v, const BatchSpec& spec,
                               const Context& context) {
  switch (c.kind) {
    case Kind::kda_gate: return check_kda_gate(gate_args(v), gate_options(c), context);
    case Kind::l2norm: return check_l2norm(l2norm_args(v), {c.eps}, context);
    case Kind::short_convolution:
      return check_short_convolution(convolution_args(v), spec, convolution_options(c), context);
    default: return check_gated_rms_norm(rms_norm_args(v), rms_norm_options(c), context);
  }
}

void run_layer(const Call& c, const Views& v, const BatchSpec& spec, const Context& context) {
  switch (c.kind) {
    case Kind::kda_gate: return kda_gate(gate_args(v), gate_options(c), context);
    case Kind::l2norm: return l2norm(l2norm_args(v), {c.eps}, context);
    case Kind::short_convolution:
      return short_convolution(convolution_args(v), spec, convolution_options(c), context);
    default: return gated_rms_norm(rms_norm_args(v), rms_norm_options(c), context);
  }
}

}  // namespace packattn::test::fuzz
