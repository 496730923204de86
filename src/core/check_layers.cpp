// SPDX-License-Identifier: Apache-2.0
#include "core/check_layers.h"

#include "core/check_kda.h"
#include "core/layer_checker.h"

namespace packattn {

KdaProblem check_kda_gate_call(const KdaGateArgs& args, const KdaGateOptions& options,
                               FaultList& faults) {
  const NamedView g{args.g, "g"}, out{args.out, "out"};
  LayerChecker layer(g, faults);
  const bool fine = layer.check_input(4, 4, "[B, T, HV, K]");
  layer.check_output(out, "[B, T, HV, K]");
  check_gate_arguments({options.gate, options.lower_bound, args.A_log, args.dt_bias, g},
                       fine ? args.g.size(2) : -1, fine ? args.g.size(3) : -1, faults);
  if (options.gate == GateKind::given) {
    faults.add(Code::option_value,
               {.argument = "gate", .value = "given", .limit = "softplus or bounded"});
  }
  layer.check_overlaps({out}, {g, {args.A_log, "A_log"}, {args.dt_bias, "dt_bias"}});
  KdaProblem p;
  if (!fine) return p;
  p.device = args.g.device();
  p.gate_dtype = args.g.dtype();
  p.out_dtype = args.out.dtype();
  p.value_heads = p.heads = args.g.size(2);
  p.key_dim = args.g.size(3);
  p.gate = options.gate;
  p.lower_bound = options.lower_bound;
  p.has_A_log = args.A_log.present();
  p.has_dt_bias = args.dt_bias.present();
  return p;
}

LayerProblem check_l2norm_call(const L2NormArgs& args, const L2NormOptions& options,
                               FaultList& faults) {
  const NamedView x{args.x, "x"}, out{args.out, "out"};
  LayerChecker layer(x, faults);
  layer.check_input(1, TensorView::max_rank, "[..., D]");
  layer.check_output(out, "[..., D]");
  layer.check_eps(options.eps);
  layer.check_overlaps({out}, {x});
  return layer.problem();
}

LayerProblem check_gated_rms_norm_call(const GatedRmsNormArgs& args,
                                       const GatedRmsNormOptions& options, FaultList& faults) {
  const NamedView x{args.x, "x"}, gate{args.gate, "gate"}, weight{args.weight, "weight"},
      bias{args.bias, "bias"}, residual{args.residual, "residual"}, out{args.out, "out"},
      residual_out{args.residual_out, "residual_out"};
  LayerChecker layer(x, faults);
  layer.check_input(1, TensorView::max_rank, "[..., D]");
  layer.check_beside(gate, layer.sizes());
  layer.check_beside(residual, layer.sizes());
  const std::vector<std::int64_t> channels{layer.problem().width};
  layer.check_beside(weight, channels);
  layer.check_beside(bias, channels);
  layer.check_output(out, "[..., D]");
  layer.check_beside(residual_out, layer.sizes(), /*written=*/true);
  layer.check_eps(options.eps);
  layer.check_overlaps({out, residual_out}, {x, gate, weight, bias, residual});
  return layer.problem();
}

}  // namespace packattn
