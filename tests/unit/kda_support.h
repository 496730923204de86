// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "packattn/kda.h"

#include "core/half.h"

// A KDA call with memory of its own, and an independent recurrence to compare it with.

namespace packattn::test {

/// A tensor that owns its memory, filled through fp32.
class Owned {
 public:
  Owned() = default;
  Owned(DType dtype, std::vector<std::int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape_) count *= size;
    bytes_.resize(static_cast<std::size_t>(count) * size_of(dtype));
  }
  template <class F>
  Owned& fill(F&& f) {
    with_float_type(dtype_, [&](auto type) {
      auto* data = reinterpret_cast<decltype(type)*>(bytes_.data());
      for (std::int64_t i = 0; i < numel(); ++i) data[i] = store<decltype(type)>(f(i));
    });
    return *this;
  }
  float operator[](std::int64_t i) const {
    return with_float_type(dtype_, [&](auto type) {
      return load(reinterpret_cast<const decltype(type)*>(bytes_.data())[i]);
    });
  }
  void set(std::int64_t i, float value) {
    with_float_type(dtype_, [&](auto type) {
      reinterpret_cast<decltype(type)*>(bytes_.data())[i] = store<decltype(type)>(value);
    });
  }
  std::int64_t numel() const {
    return static_cast<std::int64_t>(bytes_.size() / std::max<std::size_t>(1, size_of(dtype_)));
  }
  TensorView view() {
    if (dtype_ == DType::none) return {};
    // Never null: an empty tensor is still a given one.
    static std::byte nothing;
    return {bytes_.empty() ? &nothing : bytes_.data(), dtype_, Device{}, shape_};
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_ = DType::none;
  std::vector<std::int64_t> shape_;
  std::vector<std::byte> bytes_;
};

struct KdaShape {
  std::vector<std::int64_t> lengths;
  std::int64_t H = 1, HV = 2, K = 64, V = 128;
  DType dtype = DType::f32, out_dtype = DType::f32;
  bool gate_per_head = false, beta_per_channel = false;
};

/// Random inputs in ranges where the mathematics is well-behaved: unit keys, gates in [-1, 0].
struct KdaCase {
  explicit KdaCase(const KdaShape& shape, unsigned seed = 1) : s(shape) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    for (const std::int64_t length : s.lengths) T += length;
    const auto gaussian = [&](std::int64_t) { return normal(random); };
    q = Owned(s.dtype, {1, T, s.H, s.K}).fill(gaussian);
    k = Owned(s.dtype, {1, T, s.H, s.K}).fill([&](std::int64_t) {
      return normal(random) / std::sqrt(static_cast<float>(s.K));
    });
    v = Owned(s.dtype, {1, T, s.HV, s.V}).fill(gaussian);
    g = Owned(DType::f32, s.gate_per_head ? std::vector{std::int64_t{1}, T, s.HV}
                                          : std::vector{std::int64_t{1}, T, s.HV, s.K});
    g.fill([&](std::int64_t) { return -uniform(random); });
    beta = Owned(DType::f32, s.beta_per_channel ? std::vector{std::int64_t{1}, T, s.HV, s.V}
                                                : std::vector{std::int64_t{1}, T, s.HV});
    beta.fill([&](std::int64_t) { return uniform(random); });
    out = Owned(s.out_dtype, {1, T, s.HV, s.V});
    out.fill([](std::int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
    const auto N = static_cast<std::int64_t>(s.lengths.size());
    initial = Owned(DType::f32, {N, s.HV, s.K, s.V}).fill(gaussian);
    final = Owned(DType::f32, {N, s.HV, s.K, s.V}).fill([](std::int64_t) { return NAN; });
    options.state_layout = StateLayout::k_first;
  }

  PackedBatch batch() const { return PackedBatch::from_lengths(s.lengths); }
  KdaArgs args() {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .out = out.view(),
            .A_log = A_log.view(),
            .dt_bias = dt_bias.view(),
            .initial_state = initial.view(),
            .final_state = final.view()};
  }
  /// Adds the parameters that a gate kind wants.
  KdaCase& gate(GateKind kind) {
    options.gate = kind;
    A_log = Owned(DType::f32, {s.HV}).fill([](std::int64_t i) { return 0.3F * float(i) - 0.2F; });
    dt_bias = Owned(DType::f32, {s.HV, s.K}).fill([](std::int64_t i) {
      return 0.05F * static_cast<float>(i % 7) - 1;
    });
    return *this;
  }

  KdaShape s;
  std::int64_t T = 0;
  Owned q, k, v, g, beta, out, A_log, dt_bias, initial, final;
  KdaOptions options;
};

struct KdaExpected { std::vector<double> out, final; };

/// S_t = (I - b k k^T) diag(exp g) S_{t-1} + b k v^T, o = S_t^T (c q): the closed form, which no
/// implementation computes. Initial and final states k_first.
inline KdaExpected closed_form(KdaCase& c) {
  const KdaShape& s = c.s;
  KdaExpected e;
  e.out.assign(static_cast<std::size_t>(c.out.numel()), 0.0);
  e.final.assign(static_cast<std::size_t>(c.final.numel()), 0.0);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::int64_t row = 0;
  for (std::size_t n = 0; n < s.lengths.size(); ++n) {
    for (std::int64_t h = 0; h < s.HV; ++h) {
      const std::int64_t base = (static_cast<std::int64_t>(n) * s.HV + h) * s.K * s.V;
      std::vector<double> S(static_cast<std::size_t>(s.K * s.V)), kk(static_cast<std::size_t>(s.K)),
          qq(kk.size()), P(S.size());
      if (c.args().initial_state.present()) {
        for (std::size_t i = 0; i < S.size(); ++i)
          S[i] = c.initial[base + static_cast<std::int64_t>(i)];
      }
      for (std::int64_t t = row; t < row + s.lengths[n]; ++t) {
        const std::int64_t th = t * s.HV + h, key_row = (t * s.H + h / (s.HV / s.H)) * s.K;
        double qs = 1e-6, ks = 1e-6;
        for (std::int64_t d = 0; d < s.K; ++d) {
          qs += double(c.q[key_row + d]) * c.q[key_row + d];
          ks += double(c.k[key_row + d]) * c.k[key_row + d];
        }
        for (std::int64_t d = 0; d < s.K; ++d) {
          const auto i = static_cast<std::size_t>(d);
          kk[i] = c.k[key_row + d] / (c.options.l2norm ? std::sqrt(ks) : 1);
          qq[i] = c.q[key_row + d] / (c.options.l2norm ? std::sqrt(qs) : 1) *
                  c.options.scale.value_or(1 / std::sqrt(double(s.K)));
          double g = c.g[s.gate_per_head ? th : th * s.K + d];
          if (c.options.gate != GateKind::given) {
            const double x = g + c.dt_bias[h * s.K + d], rate = std::exp(double(c.A_log[h]));
            g = c.options.gate == GateKind::softplus
                    ? -rate * (x > 20 ? x : std::log(1 + std::exp(x)))
                    : c.options.lower_bound * sigmoid(rate * x);
          }
          for (std::int64_t j = 0; j < s.V; ++j) {
            P[static_cast<std::size_t>(d * s.V + j)] =
                S[static_cast<std::size_t>(d * s.V + j)] * std::exp(g);
          }
        }
        for (std::int64_t j = 0; j < s.V; ++j) {
          double b = c.beta[s.beta_per_channel ? th * s.V + j : th];
          if (c.options.beta != BetaKind::given)
            b = sigmoid(b) * (c.options.beta == BetaKind::sigmoid ? 1 : 2);
          double kP = 0, o = 0;
          for (std::int64_t d = 0; d < s.K; ++d)
            kP += kk[static_cast<std::size_t>(d)] * P[static_cast<std::size_t>(d * s.V + j)];
          for (std::int64_t d = 0; d < s.K; ++d) {
            const auto i = static_cast<std::size_t>(d * s.V + j);
            S[i] = P[i] - b * kk[static_cast<std::size_t>(d)] * kP +
                   b * kk[static_cast<std::size_t>(d)] * c.v[th * s.V + j];
            o += S[i] * qq[static_cast<std::size_t>(d)];
          }
          e.out[static_cast<std::size_t>(th * s.V + j)] = o;
        }
      }
      for (std::size_t i = 0; i < S.size(); ++i) e.final[static_cast<std::size_t>(base) + i] = S[i];
    }
    row += s.lengths[n];
  }
  return e;
}

/// ||x - y|| / ||y||; NaN anywhere makes it NaN.
inline double relative_error(const Owned& x, const std::vector<double>& y) {
  double difference = 0, norm = 1e-300;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double d = double(x[static_cast<std::int64_t>(i)]) - y[i];
    difference += d * d;
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

inline void run_kda(Op op, const KdaArgs& args, const PackedBatch& batch, const KdaOptions& options,
                    const Context& context) {
  op == Op::kda_chunk ? kda_chunk(args, batch, options, context)
                      : kda_recurrent(args, batch, options, context);
}

/// Every implementation that runs on this machine, as "op name" pairs.
struct KdaImplementationName {
  Op op;
  std::string name;
};
inline std::vector<KdaImplementationName> kda_implementations(std::initializer_list<Op> ops = {
                                                                  Op::kda_recurrent,
                                                                  Op::kda_chunk}) {
  std::vector<KdaImplementationName> result;
  KdaCase probe(KdaShape{.lengths = {1}});
  for (const Op op : ops) {
    const auto batch = probe.batch();
    for (const Verdict& v : why_kda(op, probe.args(), &batch, probe.options)) {
      if (!v.declined) result.push_back({op, v.implementation});
    }
  }
  return result;
}

/// Test names without the characters that GoogleTest does not take.
inline std::string kda_test_name(const testing::TestParamInfo<KdaImplementationName>& row) {
  std::string name = row.param.name;
  for (char& x : name) x = std::isalnum(static_cast<unsigned char>(x)) != 0 ? x : '_';
  return name;
}

}  // namespace packattn::test
