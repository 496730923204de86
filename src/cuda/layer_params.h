// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/layer_calls.h"
#include "cuda/kda_params.h"

namespace packattn::cuda {

/// Elements that a thread moves at once.
constexpr int layer_run = 8;

/// Whether runs of 8 elements from a multiple of 8 on are one or two aligned 16-byte words.
inline bool moves_runs(const TensorView& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype()));
  bool runs = reinterpret_cast<std::uintptr_t>(x.data()) % 16 == 0 && x.size(-1) % layer_run == 0;
  for (int dim = 0; dim + 1 < x.rank(); ++dim) {
    runs = runs && (x.size(dim) == 1 || x.stride(dim) * bytes % 16 == 0);
  }
  return runs;
}

/// The rows of a tensor [..., D]; data is null if it was not given.
struct RowTensor {
  explicit RowTensor(const TensorView& x)
      : data(x.data()), dtype(x.dtype()), runs(x.present() && moves_runs(x)), rows(x) {}
  void* data;
  DType dtype;
  bool runs;
  Rows rows;
};

/// Any of the norms: r = x + residual, out = r factor weight + bias, gated.
struct NormParams {
  RowTensor x, residual, weight, bias, gate, out, residual_out;
  std::int64_t rows, width;
  double eps;
  bool mean;   ///< the factor is 1 / sqrt(mean r^2 + eps), else 1 / sqrt(sum r^2 + eps)
  bool swish;  ///< of the gate
};
void launch_norm(const NormParams& p, const char* name, cudaStream_t stream);

/// exp's argument of every channel, over B T tokens of g.
void launch_kda_gate(const KdaParams& p, std::int64_t batches, bool runs, cudaStream_t stream);

/// States of a convolution, [rows, D, W - 1].
struct WindowPool {
  void* data;  ///< null if there is none
  DType dtype;
  std::int64_t row_stride, channel_stride;
};

struct ConvolutionParams {
  RowTensor x, out, weight, bias;
  WindowPool initial, final;
  DeviceBatch batch;
  const KdaRow* rows;  ///< null: sequence n has row n
  std::int32_t tile_tokens;
  std::int64_t width, taps;
  bool silu;
};
void launch_convolution(const ConvolutionParams& p, std::int64_t tile_bound, cudaStream_t stream);

KdaImplementation simt_kda_gate();
L2NormImplementation simt_l2norm();
GatedRmsNormImplementation simt_gated_rms_norm();
ShortConvolutionImplementation simt_short_convolution();

}  // namespace packattn::cuda
