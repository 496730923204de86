// SPDX-License-Identifier: Apache-2.0
#include "support/layer_case.h"

namespace packattn::test {
namespace {

using Table = std::vector<LayerCase>;

void add_gates(Table& t) {
  for (const GateKind kind : {GateKind::softplus, GateKind::bounded}) {
    const std::string name = kind == GateKind::softplus ? "softplus" : "bounded";
    for (const Bias bias : {Bias::none, Bias::matrix, Bias::flat}) {
      t.push_back({.name = "gate_" + name + "_bias_" + std::to_string(static_cast<int>(bias)),
                   .op = Op::kda_gate,
                   .heads = 3,
                   .width = 21,
                   .gate_kind = kind,
                   .dt_bias = bias});
    }
    t.push_back({.name = "gate_bf16_" + name,
                 .op = Op::kda_gate,
                 .heads = 2,
                 .width = 64,
                 .dtype = DType::bf16,
                 .out_dtype = DType::f32,
                 .gate_kind = kind});
  }
  t.push_back({.name = "gate_bounded_without_A_log",
               .op = Op::kda_gate,
               .gate_kind = GateKind::bounded,
               .A_log = false});
}

void add_norms(Table& t) {
  for (const std::int64_t width : {1, 3, 64, 1024, 1025, 5000}) {
    t.push_back({.name = "l2norm_" + std::to_string(width), .width = width});
    t.push_back({.name = "rms_" + std::to_string(width),
                 .op = Op::gated_rms_norm,
                 .width = width,
                 .weight = true,
                 .gate = true});
  }
  // More than 64 KB a row, where another library stops.
  t.push_back({.name = "l2norm_70000", .lengths = {2, 1}, .width = 70000, .dtype = DType::bf16});
  t.push_back({.name = "l2norm_eps", .eps = 0.5});
  t.push_back({.name = "rms_eps_0", .op = Op::gated_rms_norm, .eps = 0});
  for (int bits = 0; bits < 16; ++bits) {
    t.push_back({.name = "rms_with_" + std::to_string(bits),
                 .op = Op::gated_rms_norm,
                 .weight = (bits & 1) != 0,
                 .bias = (bits & 2) != 0,
                 .gate = (bits & 4) != 0,
                 .residual = (bits & 8) != 0,
                 .residual_out = bits % 3 == 0,
                 .activation = bits % 2 == 0 ? GateActivation::sigmoid : GateActivation::swish});
  }
}

void add_convolutions(Table& t) {
  for (const std::int64_t taps : {1, 2, 4, 7}) {
    for (const KdaState state : {KdaState::none, KdaState::in_place, KdaState::initial_only,
                                 KdaState::final_only, KdaState::separate}) {
      t.push_back({.name = "convolution_" + std::to_string(taps) + "_state_" +
                           std::to_string(static_cast<int>(state)),
                   .op = Op::short_convolution,
                   .width = 70,
                   .taps = taps,
                   .bias = taps % 2 == 0,
                   .silu = taps > 2,
                   .state = state});
    }
  }
  for (const bool nulls : {false, true}) {
    for (const KdaState state : {KdaState::in_place, KdaState::separate}) {
      t.push_back({.name = std::string("convolution_pool_") + (nulls ? "nulls_" : "") +
                           std::to_string(static_cast<int>(state)),
                   .op = Op::short_convolution,
                   .lengths = {5, 4, 0, 1, 0, 2},
                   .state = state,
                   .slots = true,
                   .null_slots = nulls});
    }
  }
  for (const Boundaries b : {Boundaries::lengths, Boundaries::starts, Boundaries::capacity}) {
    t.push_back({.name = "convolution_boundaries_" + std::to_string(static_cast<int>(b)),
                 .op = Op::short_convolution,
                 .silu = true,
                 .state = KdaState::separate,
                 .boundaries = b});
  }
  for (const auto& lengths :
       std::vector<std::vector<std::int64_t>>{{}, {0}, {0, 1}, {1, 0}, {500, 1, 300}}) {
    t.push_back({.name = "convolution_lengths_" + std::to_string(lengths.size()) + "_" +
                         std::to_string(lengths.empty() ? 0 : lengths.front()),
                 .op = Op::short_convolution,
                 .lengths = lengths,
                 .state = KdaState::separate});
  }
}

void add_forms_and_types(Table& t) {
  for (const Op op : {Op::kda_gate, Op::l2norm, Op::short_convolution, Op::gated_rms_norm}) {
    const auto add = [&](const std::string& name, DType dtype, DType side, Form form) {
      t.push_back({.name = to_string(op) + "_" + name,
                   .op = op,
                   .heads = op == Op::kda_gate ? 2 : 1,
                   .dtype = dtype,
                   .side_dtype = side,
                   .weight = op == Op::gated_rms_norm,
                   .bias = op == Op::short_convolution,
                   .gate = op == Op::gated_rms_norm,
                   .residual = op == Op::gated_rms_norm,
                   .residual_out = op == Op::gated_rms_norm,
                   .state = op == Op::short_convolution ? KdaState::in_place : KdaState::none,
                   .form = form});
    };
    for (const DType dtype : {DType::f16, DType::bf16}) {
      add(to_string(dtype), dtype, dtype, Form::contiguous);
      add(to_string(dtype) + "_beside_f32", dtype, DType::f32, Form::contiguous);
    }
    for (const Form form : {Form::wide, Form::heads_first, Form::odd_base, Form::odd_unit}) {
      add(to_string(form), DType::f32, DType::f32, form);
      add(to_string(form) + "_bf16", DType::bf16, DType::bf16, form);
    }
  }
}

}  // namespace

std::vector<LayerCase> layer_table() {
  Table table;
  add_gates(table);
  add_norms(table);
  add_convolutions(table);
  add_forms_and_types(table);
  return table;
}

}  // namespace packattn::test
