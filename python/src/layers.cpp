// SPDX-License-Identifier: Apache-2.0
// The neighbours of KDA: gate, norms, short convolution.
#include <algorithm>
#include <string>
#include <vector>

#include <tvm/ffi/reflection/registry.h>

#include "batch.h"
#include "faults.h"
#include "verdicts.h"

namespace packattn::python {

namespace {

// Stands in for an output that Python makes, so that a call can be checked as it would run.
TensorView planned_like(const CallReader& call, const char* name, int number, DType dtype,
                        const TensorView& x) {
  if (!call.planned(name) || x.rank() > TensorView::max_rank) return {};
  std::vector<std::int64_t> shape;
  for (int dim = 0; dim < x.rank(); ++dim) shape.push_back(x.size(dim));
  return phantom(number, dtype, x.device(), shape);
}

struct Gate {
  KdaGateArgs args;
  KdaGateOptions options;
  Context context;

  explicit Gate(CallReader& call) {
    call.faults();
    args.g = call.tensor("g");
    args.A_log = call.tensor("A_log");
    args.dt_bias = call.tensor("dt_bias");
    args.out = call.tensor("out");
    options.gate = static_cast<GateKind>(
        call.choice("gate", "'softplus' or 'bounded'", static_cast<int>(options.gate)));
    options.lower_bound = call.number("lower_bound", options.lower_bound);
    context = read_context(call, args.g);
    if (call.planned("out")) args.out = planned_like(call, "out", 0, DType::f32, args.g);
  }
  std::vector<Fault> check() const { return check_kda_gate(args, options, context); }
  std::vector<Verdict> why() const { return why_kda_gate(args, options, context); }
  void run() const { kda_gate(args, options, context); }
};

struct L2Norm {
  L2NormArgs args;
  L2NormOptions options;
  Context context;

  explicit L2Norm(CallReader& call) {
    call.faults();
    args.x = call.tensor("x");
    args.out = call.tensor("out");
    options.eps = call.number("eps", options.eps);
    context = read_context(call, args.x);
    if (call.planned("out")) args.out = planned_like(call, "out", 0, args.x.dtype(), args.x);
  }
  std::vector<Fault> check() const { return check_l2norm(args, options, context); }
  std::vector<Verdict> why() const { return why_l2norm(args, options, context); }
  void run() const { l2norm(args, options, context); }
};

struct GatedRmsNorm {
  GatedRmsNormArgs args;
  GatedRmsNormOptions options;
  Context context;

  explicit GatedRmsNorm(CallReader& call) {
    call.faults();
    args.x = call.tensor("x");
    args.gate = call.tensor("gate");
    args.weight = call.tensor("weight");
    args.bias = call.tensor("bias");
    args.residual = call.tensor("residual");
    args.out = call.tensor("out");
    args.residual_out = call.tensor("residual_out");
    options.activation =
        static_cast<GateActivation>(call.choice("activation", "'swish', 'silu' or 'sigmoid'"));
    options.eps = call.number("eps", options.eps);
    context = read_context(call, args.x);
    if (call.planned("out")) args.out = planned_like(call, "out", 0, args.x.dtype(), args.x);
    if (call.planned("residual_out")) {
      args.residual_out = planned_like(call, "residual_out", 1, args.x.dtype(), args.x);
    }
  }
  std::vector<Fault> check() const { return check_gated_rms_norm(args, options, context); }
  std::vector<Verdict> why() const { return why_gated_rms_norm(args, options, context); }
  void run() const { gated_rms_norm(args, options, context); }
};

struct ShortConvolution {
  ShortConvolutionArgs args;
  ShortConvolutionOptions options;
  Context context;
  BatchArgument batch;

  explicit ShortConvolution(CallReader& call) {
    call.faults();
    args.x = call.tensor("x");
    args.weight = call.tensor("weight");
    args.bias = call.tensor("bias");
    args.out = call.tensor("out");
    args.state = call.tensor("state");
    args.initial_state = call.tensor("initial_state");
    args.final_state = call.tensor("final_state");
    args.slots = call.tensor("slots");
    options.silu = call.flag("silu");
    options.null_slot = call.integer("null_slot", options.null_slot);
    context = read_context(call, args.x);
    batch = read_batch(call);
    if (call.planned("out")) args.out = planned_like(call, "out", 0, args.x.dtype(), args.x);
    const auto states = call.planned_size("final_state");
    if (states && args.x.rank() == 2 && args.weight.rank() == 2) {
      const TensorView& initial = args.initial_state;
      const std::vector<std::int64_t> shape{std::max<std::int64_t>(0, *states), args.x.size(1),
                                            std::max<std::int64_t>(1, args.weight.size(1)) - 1};
      args.final_state =
          phantom(1, initial.present() ? initial.dtype() : args.x.dtype(), args.x.device(), shape);
    }
  }
  std::vector<Fault> check() const {
    return batch.batch ? check_short_convolution(args, *batch.batch, options, context)
                       : check_short_convolution(args, spec(), options, context);
  }
  std::vector<Verdict> why() const {
    return why_short_convolution(args, batch.checked(), options, context);
  }
  void run() const {
    batch.batch ? short_convolution(args, *batch.batch, options, context)
                : short_convolution(args, spec(), options, context);
  }
  BatchSpec spec() const { return batch.spec.value_or(BatchSpec{}); }
};

/// Registers a layer's function and what is asked about it.
template <class Layer>
void define(const std::string& name) {
  tvm::ffi::reflection::GlobalDef()
      .def_packed(("packattn." + name).c_str(),
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    *result = guarded([&]() -> ffi::Any {
                      CallReader call(args);
                      const Layer layer(call);
                      if (!call.clean()) return refusal(call.refusing_faults(layer.check()));
                      layer.run();
                      return nullptr;
                    });
                  })
      .def_packed(("packattn.check_" + name).c_str(),
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    CallReader call(args);
                    const Layer layer(call);
                    *result = refusal(call.faults_and(layer.check()));
                  })
      .def_packed(("packattn.why_" + name).c_str(), [](ffi::PackedArgs args, ffi::Any* result) {
        *result = guarded([&]() -> ffi::Any {
          CallReader call(args);
          const Layer layer(call);
          const auto found = call.faults_and(layer.check());
          if (!found.empty()) return refusal(found);
          return verdicts(layer.why());
        });
      });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  define<Gate>("kda_gate");
  define<L2Norm>("l2norm");
  define<ShortConvolution>("short_convolution");
  define<GatedRmsNorm>("gated_rms_norm");
}

}  // namespace packattn::python
