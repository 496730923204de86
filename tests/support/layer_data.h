// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "support/layer_case.h"

namespace packattn::test {

struct LayerSequence {
  std::int64_t t = 0;
  std::vector<float> x = {}, gate = {}, residual = {};  ///< [t, row]
  std::vector<float> initial = {};                      ///< [row, taps - 1]; empty: zeros
};

struct LayerOracle { std::vector<double> out, residual, final; };

/// The content of a call, apart from where it lies.
struct LayerData {
  LayerCase shape;
  std::vector<LayerSequence> sequences;
  std::vector<float> weight, bias, A_log, dt_bias;

  explicit LayerData(const LayerCase& c);
  /// These sequences, in this order, contiguous and with cu_seqlens, states in separate tensors.
  LayerData only(const std::vector<std::size_t>& order) const;
  /// Tokens [begin, end) of sequence n, from `initial`.
  LayerSequence cut(std::size_t n, std::int64_t begin, std::int64_t end,
                    std::vector<float> initial) const;
  LayerOracle expected(std::size_t n) const;
  double eps() const { return shape.eps.value_or(shape.op == Op::l2norm ? 1e-6 : 1e-5); }
};

struct LayerResult { std::vector<float> out = {}, residual = {}, final = {}; };

/// The data in guarded memory, ready to be run many times.
class LayerPlacement {
 public:
  explicit LayerPlacement(const LayerData& data);

  std::optional<Fault> declined(const std::string& implementation) const;
  /// Runs, and fails the test if memory was touched that is not the call's to touch.
  std::vector<LayerResult> run(const Context& context);

 private:
  void place_rows(const LayerData& data);
  void place_state(const LayerData& data);
  void invoke(const Context& context) const;
  std::vector<Verdict> why() const;
  void check_memory() const;
  std::vector<LayerResult> collect() const;
  KdaGateArgs gate_args() const;
  GatedRmsNormArgs rms_norm_args() const;
  ShortConvolutionArgs convolution_args() const;
  const Guarded& written_pool() const { return state_.present() ? state_ : final_; }

  LayerCase shape_;
  double eps_;
  std::vector<std::int64_t> lengths_, starts_, pool_rows_;
  std::int64_t tokens_ = 0;
  BatchSpec spec_;
  std::optional<PackedBatch> batch_;
  Guarded x_, gate_, residual_, weight_, bias_, A_log_, dt_bias_, out_, residual_out_;
  Guarded state_, initial_, final_, slots_;
  std::vector<Guarded> boundaries_;
};

}  // namespace packattn::test
