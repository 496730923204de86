// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check_attention.h"
#include "core/check_tensors.h"
#include "core/layer_calls.h"

namespace packattn {

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
    checks_.disjoint_all({outputs.begin(), outputs.size()}, {inputs.begin(), inputs.size()});
  }

  LayerProblem problem() const {
    LayerProblem p{.device = x_.view.device(), .rows = 1, .width = 0};
    for (std::size_t dim = 0; dim + 1 < sizes_.size(); ++dim) {
      // Sizes of no memory there is: such a call is never run.
      if (__builtin_mul_overflow(p.rows, sizes_[dim], &p.rows)) p.rows = INT64_MAX;
    }
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

}  // namespace packattn
