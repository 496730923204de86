// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "packattn/layers.h"

#include "support/kda_case.h"

namespace packattn::test {

/// One call of a neighbour of KDA as a value. Rows that a norm or a gate treats alone stand in
/// sequences too, so that all of them are held to the same promises.
struct LayerCase {
  std::string name;
  Op op = Op::l2norm;
  std::vector<std::int64_t> lengths = {5, 0, 1, 17};
  std::int64_t heads = 1;   ///< of kda_gate; the width of a row is heads * width
  std::int64_t width = 40;  ///< D, or K of kda_gate
  std::int64_t taps = 4;    ///< W of short_convolution
  DType dtype = DType::f32;
  std::optional<DType> out_dtype = {};
  DType side_dtype = DType::f32;  ///< of weight, bias, gate, residual and states
  bool weight = false, bias = false, gate = false, residual = false, residual_out = false;
  GateKind gate_kind = GateKind::softplus;
  bool A_log = true;
  Bias dt_bias = Bias::none;
  GateActivation activation = GateActivation::swish;
  bool silu = false;
  std::optional<double> eps = {};
  KdaState state = KdaState::none;
  bool slots = false;
  bool null_slots = false;  ///< every third sequence, from the second on, is skipped
  Boundaries boundaries = Boundaries::cu_int32;
  Form form = Form::contiguous;

  DType out_type() const { return out_dtype.value_or(dtype); }
  std::int64_t row() const { return heads * width; }
  bool convolves() const { return op == Op::short_convolution; }
  bool reads_state() const { return state != KdaState::none && state != KdaState::final_only; }
  bool writes_state() const { return state != KdaState::none && state != KdaState::initial_only; }
  bool skipped(std::size_t n) const { return null_slots && n % 3 == 1; }
};

std::vector<LayerCase> layer_table();

inline void PrintTo(const LayerCase& c, std::ostream* os) { *os << c.name; }

}  // namespace packattn::test
