// SPDX-License-Identifier: Apache-2.0
#include "core/check_layers.h"

#include <cmath>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check_attention.h"
#include "core/check_kda.h"
#include "core/check_tensors.h"

namespace packattn {
namespace {

/// A layer's main input and the tensors that go with it.
class LayerChecker {
 public:
  LayerChecker(NamedView x, FaultList& faults) : faults_(faults), checks_(faults), x_(x) {}

  /// x: given, of a rank from `lowest` to `highest`, of a floating type, not empty in its last
  /// size.
  bool check_input(int lowest, int highest, std::string_view shape) {
    const TensorView& x = x_.view;
    if (x.present() && (x.rank() < lowest || x.rank() > highest)) {
      faults_.add(Code::tensor_rank,
                  {.argument = std::string(x_.name),
                   .value = std::to_string(x.rank()),
                   .limit = lowest == highest ? fmt::format("{} ({})", lowest, shape)
                                              : fmt::format("{} to {}", lowest, highest)});
      return false;
    }
    if (!checks_.given(x_, x.rank(), shape)) return false;
    check_device(x_.name, x.device(), faults_);
    checks_.dtype(x_, {DType::f32, DType::f16, DType::bf16});
    if (x.size(-1) == 0) {
      faults_.add(Code::zero_size,
                  {.argument = std::string(x_.name), .position = "its last dimension"});
    }
    checks_.readable(x_);
    sizes_.clear();
    for (int dim = 0; dim < x.rank(); ++dim) sizes_.push_back(x.size(dim));
    return fine_ = true;
  }

  /// A tensor of these sizes, of x's type or fp32; fine when absent.
  bool check_beside(NamedView t, const std::vector<std::int64_t>& sizes, bool written = false) {
    if (!t.view.present()) return false;
    if (x_.view.present()) {
      if (t.view.dtype() != x_.view.dtype()) checks_.dtype(t, {DType::f32, x_.view.dtype()});
      checks_.same_device(t, x_);
    }
    if (!fine_) return false;
    bool same = t.view.rank() == static_cast<int>(sizes.size());
    for (std::size_t dim = 0; same && dim < sizes.size(); ++dim) {
      same = t.view.size(static_cast<int>(dim)) == sizes[dim];
    }
    if (!same) {
      faults_.add(Code::tensor_shape, {.argument = std::string(t.name),
                                       .value = t.view.shape_string(),
                                       .limit = fmt::format("[{}]", fmt::join(sizes, ", "))});
      return false;
    }
    return written ? checks_.writable(t) : checks_.readable(t);
  }

  void check_output(NamedView t, std::string_view shape) {
    if (t.view.present()) check_beside(t, sizes_, /*written=*/true);
    else checks_.given(t, 1, shape);
  }

  void check_eps(double eps) {
    if (is_zero_or_positive_float(eps)) return;
    faults_.add(Code::option_value,
                {.argument = "eps", .value = number_text(eps), .limit = zero_or_positive_float});
  }

  void check_overlaps(std::initializer_list<NamedView> outputs,
                      std::initializer_list<NamedView> inputs) {
    const auto known = [](const NamedView& t) { return t.view.rank() <= TensorView::max_rank; };
    for (const NamedView* a = outputs.begin(); a != outputs.end(); ++a) {
      for (const NamedView& b : inputs) {
        if (known(*a) && known(b)) checks_.disjoint(*a, b);
      }
      for (const NamedView* b = outputs.begin(); b != a; ++b) {
        if (known(*a) && known(*b)) checks_.disjoint(*a, *b);
      }
    }
  }

  LayerProblem problem() const {
    LayerProblem p{.device = x_.view.device(), .rows = 1, .width = 0};
    for (std::size_t dim = 0; dim + 1 < sizes_.size(); ++dim) p.rows *= sizes_[dim];
    if (!sizes_.empty()) p.width = sizes_.back();
    return p;
  }

  bool fine() const { return fine_; }
  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  TensorChecks& checks() { return checks_; }

 private:
  FaultList& faults_;
  TensorChecks checks_;
  NamedView x_;
  bool fine_ = false;
  std::vector<std::int64_t> sizes_;
};

/// States of a convolution: sources, count or slots; fills the rows of every sequence.
void check_convolution_states(const ShortConvolutionArgs& args, std::int64_t null_slot,
                              LayerChecker& layer, CheckedConvolution& checked, FaultList& faults) {
  const NamedView state{args.state, "state"}, initial{args.initial_state, "initial_state"},
      final{args.final_state, "final_state"}, slots{args.slots, "slots"};
  for (const NamedView& other : {initial, final}) {
    if (args.state.present() && other.view.present()) {
      faults.add(Code::state_sources, {.argument = std::string(other.name), .value = "state"});
    }
  }
  checked.initial = args.state.present() ? args.state : args.initial_state;
  checked.final = args.state.present() ? args.state : args.final_state;
  const auto count = static_cast<std::int64_t>(checked.sequences.size());
  bool fine = true;
  for (const NamedView& t : {state, initial, final}) {
    if (!t.view.present()) continue;
    const std::int64_t rows = t.view.rank() > 0 ? t.view.size(0) : 0;
    fine = layer.check_beside(t, {rows, checked.problem.width, checked.taps - 1},
                              &t.view != &args.initial_state) &&
           fine;
    if (!args.slots.present() && rows != count) {
      faults.add(Code::state_count, {.argument = std::string(t.name),
                                     .value = std::to_string(rows),
                                     .limit = std::to_string(count)});
      fine = false;
    }
  }
  if (args.initial_state.present() && args.final_state.present()) {
    layer.checks().same_dtype(final, initial);
  }
  if (args.slots.present()) {
    if (!checked.initial.present() && !checked.final.present()) {
      faults.add(Code::slots_without_state, {.argument = "slots", .value = "state"});
      return;
    }
    if (!layer.checks().given(slots, 1, "[N]") ||
        !layer.checks().dtype(slots, {DType::i32, DType::i64}) ||
        !layer.checks().same_device(slots, {args.x, "x"}) || !layer.checks().readable(slots)) {
      return;
    }
    if (args.slots.size(0) != count) {
      faults.add(Code::slot_count, {.argument = "slots",
                                    .value = std::to_string(args.slots.size(0)),
                                    .limit = std::to_string(count)});
      return;
    }
  }
  if (!fine) return;
  const TensorView& pool = checked.final.present() ? checked.final : checked.initial;
  std::unordered_set<std::int64_t> written;
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t slot = n;
    KdaSequence& s = checked.sequences[static_cast<std::size_t>(n)];
    if (args.slots.present()) {
      const std::int64_t at = n * args.slots.stride(0);
      slot = args.slots.dtype() == DType::i32 ? args.slots.as<std::int32_t>()[at]
                                              : args.slots.as<std::int64_t>()[at];
      s.skipped = slot == null_slot;
      if (s.skipped) continue;
      if (slot < 0 || slot >= pool.size(0)) {
        faults.add(Code::slot_range, {.argument = "slots",
                                      .position = fmt::format("index {}", n),
                                      .value = std::to_string(slot),
                                      .limit = fmt::format("0 to {}", pool.size(0) - 1)});
        continue;
      }
      if (checked.final.present() && !written.insert(slot).second) {
        faults.add(Code::slot_duplicate, {.argument = "slots",
                                          .position = fmt::format("index {}", n),
                                          .value = std::to_string(slot)});
      }
    }
    if (checked.initial.present()) s.initial = slot;
    if (checked.final.present()) s.final = slot;
  }
}

}  // namespace

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

CheckedConvolution check_short_convolution_call(const ShortConvolutionArgs& args,
                                                const detail::BatchState& batch,
                                                const ShortConvolutionOptions& options,
                                                FaultList& faults) {
  const NamedView x{args.x, "x"}, weight{args.weight, "weight"}, bias{args.bias, "bias"},
      out{args.out, "out"};
  CheckedConvolution checked;
  LayerChecker layer(x, faults);
  layer.check_input(2, 2, "[T, D]");
  checked.problem = layer.problem();
  const std::int64_t width = checked.problem.width;
  if (!layer.checks().given(weight, 2, "[D, W]")) {
    checked.taps = 1;
  } else {
    checked.taps = std::max<std::int64_t>(1, args.weight.size(1));
    layer.check_beside(weight, {width, checked.taps});
  }
  layer.check_beside(bias, {width});
  layer.check_output(out, "[T, D]");
  if (!batch.shared) faults.add(Code::keys_boundaries, {.argument = "short_convolution"});
  if (layer.fine()) {
    check_batch_device(batch, args.x.device(), faults);
    if (batch.host_known) check_rows("x", args.x.size(0), batch.q, batch.capacity, faults);
  }
  for (const Sequence& s : batch.sequences) {
    checked.sequences.push_back({.row = 0, .start = s.q_start, .length = s.q_length});
  }
  if (layer.fine()) {
    check_convolution_states(args, options.null_slot, layer, checked, faults);
  }
  layer.check_overlaps({out, {args.state, "state"}, {args.final_state, "final_state"}},
                       {x, weight, bias, {args.initial_state, "initial_state"}});
  return checked;
}

}  // namespace packattn
