// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "packattn/layers.h"

#include "core/implementation_table.h"

namespace packattn {

/// The rows of a tensor [..., D] by one index. Leading dimensions that are one run are merged, so
/// that most tensors need a single multiplication.
class Rows {
 public:
  explicit Rows(const TensorView& x) {
    for (int dim = 0; dim + 1 < x.rank(); ++dim) {
      if (x.size(dim) == 1) continue;
      if (dims_ > 0 && stride_[dims_ - 1] == x.stride(dim) * x.size(dim)) {
        size_[dims_ - 1] *= x.size(dim);
        stride_[dims_ - 1] = x.stride(dim);
      } else {
        size_[dims_] = x.size(dim);
        stride_[dims_++] = x.stride(dim);
      }
    }
  }
  /// constexpr, so that device code may call it.
  constexpr std::int64_t offset(std::int64_t row) const {
    std::int64_t offset = 0;
    for (std::size_t dim = dims_; dim-- > 1;) {
      offset += row % size_[dim] * stride_[dim];
      row /= size_[dim];
    }
    return offset + row * stride_[0];
  }

 private:
  std::size_t dims_ = 0;
  std::array<std::int64_t, TensorView::max_rank> size_{}, stride_{};
};

/// What every layer call has, legal by construction.
struct LayerProblem {
  Device device;
  std::int64_t rows = 0;   ///< product of the leading dimensions
  std::int64_t width = 0;  ///< D

  friend bool operator==(const LayerProblem&, const LayerProblem&) = default;
};

struct L2NormCall {
  const L2NormArgs& args;
  LayerProblem problem;
  double eps;
};

struct GatedRmsNormCall {
  const GatedRmsNormArgs& args;
  LayerProblem problem;
  const GatedRmsNormOptions& options;
};

struct ShortConvolutionCall {
  const ShortConvolutionArgs& args;
  LayerProblem problem;
  bool silu;
  std::int64_t taps;  ///< W
  std::span<const KdaSequence> sequences;
  TensorView initial, final;
  // For devices, which read boundaries and slots themselves.
  std::int64_t count = 0;  ///< N
  std::int64_t null_slot = -1;
  const detail::BatchState* batch = nullptr;
};

using L2NormImplementation = Implementation<L2NormCall>;
using GatedRmsNormImplementation = Implementation<GatedRmsNormCall>;
using ShortConvolutionImplementation = Implementation<ShortConvolutionCall>;

}  // namespace packattn
