// SPDX-License-Identifier: Apache-2.0
// The neighbours of KDA in vectors: gate and norms. Rows are independent; sums of squares are
// fp64, everything else is fp32.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "cpu/cpu.h"
#include "cpu/norm_rows.h"
#include "cpu/parallel.h"
#include "cpu/simd_support.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norms.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
#include "cpu/kda_inputs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

constexpr hn::ScalableTag<float> df;
using Vec = hn::Vec<decltype(df)>;
constexpr std::int64_t lanes = hn::MaxLanes(df);
// A row is worked on in pieces that stay in the first-level cache, whatever its length.
constexpr std::int64_t piece = 1024;
constexpr std::int64_t elements_per_item = 1 << 15;

using Piece = std::array<float, piece>;

/// `count` elements of a tensor at `offset`, one piece of a row; the rest of the vector is zeros.
void load_piece(const TensorView& x, std::int64_t offset, std::int64_t count, Piece& to) {
  widen_from(x, offset, count, KdaInputs::padded(count), to.data());
}
void store_piece(const Piece& from, std::int64_t count, const TensorView& x, std::int64_t offset) {
  with_float_type(x.dtype(), [&](auto type) HWY_ATTR {
    narrow(from.data(), static_cast<std::size_t>(count), x.as<decltype(type)>() + offset);
  });
}

/// x[i] = f(x[i], i) in vectors.
template <class F>
HWY_INLINE void update(Piece& x, std::int64_t count, F&& f) {
  for (std::int64_t i = 0; i < count; i += lanes) {
    hn::StoreU(f(hn::LoadU(df, x.data() + i), i), df, x.data() + i);
  }
}

double sum_of_squares(const Piece& x, std::int64_t count) {
  const hn::Repartition<double, decltype(df)> dd;
  const hn::Rebind<float, decltype(dd)> half;
  auto sum = hn::Zero(dd);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(dd))) {
    const auto wide = hn::PromoteTo(dd, hn::LoadU(half, x.data() + i));
    sum = hn::MulAdd(wide, wide, sum);
  }
  return hn::GetLane(hn::SumOfLanes(dd, sum));
}

/// Calls f(first, count) for the pieces of a row.
template <class F>
HWY_INLINE void for_each_piece(std::int64_t width, F&& f) {
  for (std::int64_t d = 0; d < width; d += piece) f(d, std::min(piece, width - d));
}

template <class F>
void for_each_row(const LayerProblem& p, const RunContext& context, F&& f) {
  const std::int64_t rows = std::max<std::int64_t>(1, elements_per_item / p.width);
  parallel_for_items((p.rows + rows - 1) / rows, context, [&](std::int64_t item, int) {
    for (std::int64_t row = item * rows; row < std::min(p.rows, (item + 1) * rows); ++row) f(row);
  });
}

void run_l2norm(const L2NormCall& call, const Plan&, const RunContext& context) {
  const TensorView &x = call.args.x, &out = call.args.out;
  const Rows x_rows(x), out_rows(out);
  for_each_row(call.problem, context, [&](std::int64_t row) {
    Piece v;
    double sum = call.eps;
    for_each_piece(call.problem.width, [&](std::int64_t d, std::int64_t count) {
      load_piece(x, x_rows.offset(row) + d, count, v);
      sum += sum_of_squares(v, count);
    });
    const auto factor = static_cast<float>(1 / std::sqrt(sum));
    for_each_piece(call.problem.width, [&](std::int64_t d, std::int64_t count) HWY_ATTR {
      if (call.problem.width > piece) load_piece(x, x_rows.offset(row) + d, count, v);
      update(v, count,
             [&](Vec value, std::int64_t) HWY_ATTR { return hn::Mul(value, hn::Set(df, factor)); });
      store_piece(v, count, out, out_rows.offset(row) + d);
    });
  });
}

/// f(gate) times what is there already.
void apply_gate(GateActivation activation, const Piece& gate, std::int64_t count, Piece& y) {
  update(y, count, [&](Vec value, std::int64_t i) HWY_ATTR {
    const Vec z = hn::LoadU(df, gate.data() + i);
    const Vec f = sigmoid(df, z);
    return hn::Mul(value, activation == GateActivation::swish ? hn::Mul(z, f) : f);
  });
}

void run_gated_rms_norm(const GatedRmsNormCall& call, const Plan&, const RunContext& context) {
  const GatedRmsNormArgs& a = call.args;
  const Rows x(a.x), gate(a.gate), residual(a.residual), out(a.out), residual_out(a.residual_out);
  const auto sum_at = [&](std::int64_t row, std::int64_t d, std::int64_t count, Piece& r) {
    load_piece(a.x, x.offset(row) + d, count, r);
    if (!a.residual.present()) return;
    Piece other;
    load_piece(a.residual, residual.offset(row) + d, count, other);
    update(r, count, [&](Vec value, std::int64_t i) HWY_ATTR {
      return hn::Add(value, hn::LoadU(df, other.data() + i));
    });
  };
  for_each_row(call.problem, context, [&](std::int64_t row) {
    Piece r, other;
    double squares = 0;
    for_each_piece(call.problem.width, [&](std::int64_t d, std::int64_t count) {
      sum_at(row, d, count, r);
      squares += sum_of_squares(r, count);
      if (a.residual_out.present()) {
        store_piece(r, count, a.residual_out, residual_out.offset(row) + d);
      }
    });
    const auto width = static_cast<double>(call.problem.width);
    const auto factor = static_cast<float>(1 / std::sqrt(squares / width + call.options.eps));
    for_each_piece(call.problem.width, [&](std::int64_t d, std::int64_t count) HWY_ATTR {
      if (call.problem.width > piece) sum_at(row, d, count, r);
      const auto with = [&](const TensorView& t, std::int64_t offset, auto&& f) HWY_ATTR {
        if (!t.present()) return;
        load_piece(t, offset, count, other);
        update(r, count, [&](Vec value, std::int64_t i) HWY_ATTR {
          return f(value, hn::LoadU(df, other.data() + i));
        });
      };
      update(r, count,
             [&](Vec value, std::int64_t) HWY_ATTR { return hn::Mul(value, hn::Set(df, factor)); });
      with(a.weight, d, [](Vec value, Vec weight) HWY_ATTR { return hn::Mul(value, weight); });
      with(a.bias, d, [](Vec value, Vec bias) HWY_ATTR { return hn::Add(value, bias); });
      if (a.gate.present()) {
        load_piece(a.gate, gate.offset(row) + d, count, other);
        apply_gate(call.options.activation, other, count, r);
      }
      store_piece(r, count, a.out, out.offset(row) + d);
    });
  });
}

void run_gate(const KdaCall& call, const Plan&, const RunContext& context) {
  const TensorView &g = call.args.g, &out = call.args.out;
  const std::int64_t heads = call.problem.value_heads, K = call.problem.key_dim;
  const std::int64_t tokens = std::max<std::int64_t>(1, elements_per_item / (heads * K));
  const std::int64_t groups = (g.size(1) + tokens - 1) / tokens;
  parallel_for_items(g.size(0) * groups, context, [&](std::int64_t item, int worker) {
    float* row = reinterpret_cast<float*>(context.workspace.data()) + worker * KdaInputs::padded(K);
    const std::int64_t first = item % groups * tokens;
    const KdaSequence s{
        .row = item / groups, .start = first, .length = std::min(tokens, g.size(1) - first)};
    for (std::int64_t h = 0; h < heads; ++h) {
      const KdaInputs in(call, s, h);
      for (std::int64_t t = 0; t < s.length; ++t) {
        in.log_decay(t, row);
        with_float_type(out.dtype(), [&](auto type) HWY_ATTR {
          narrow(row, static_cast<std::size_t>(K),
                 out.as<decltype(type)>() + kda_token_offset(out, s, t, h));
        });
      }
    }
  });
}

/// Scratch memory of so many bytes for every thread.
std::shared_ptr<const Plan> plan_of(std::size_t bytes, int threads) {
  auto plan = std::make_shared<Plan>();
  plan->workspace_bytes = bytes * static_cast<std::size_t>(threads);
  return plan;
}

constexpr std::size_t row_index = HWY_TARGET == HWY_AVX3 ? 0 : HWY_TARGET == HWY_AVX2 ? 1 : 2;
constexpr std::array<std::string_view, 3> gate_names{"cpu/kda_gate.avx512", "cpu/kda_gate.avx2",
                                                     "cpu/kda_gate.neon"};
constexpr std::array<std::string_view, 3> l2norm_names{"cpu/l2norm.avx512", "cpu/l2norm.avx2",
                                                       "cpu/l2norm.neon"};
constexpr std::array<std::string_view, 3> rms_names{
    "cpu/gated_rms_norm.avx512", "cpu/gated_rms_norm.avx2", "cpu/gated_rms_norm.neon"};

}  // namespace

NormRows norm_rows() {
  return {
      .gate = {gate_names[row_index],
               [](const KdaCall&) { return decline_simd(gate_names[row_index], HWY_TARGET); },
               [](const KdaCall& call, int threads) {
                 const std::int64_t floats = KdaInputs::padded(call.problem.key_dim);
                 return plan_of(static_cast<std::size_t>(floats) * sizeof(float), threads);
               },
               run_gate},
      .l2norm = {
          l2norm_names[row_index],
          [](const L2NormCall&) { return decline_simd(l2norm_names[row_index], HWY_TARGET); },
          [](const L2NormCall&, int) { return plan_of(0, 0); }, run_l2norm},
      .gated_rms_norm = {
          rms_names[row_index],
          [](const GatedRmsNormCall&) { return decline_simd(rms_names[row_index], HWY_TARGET); },
          [](const GatedRmsNormCall&, int) { return plan_of(0, 0); }, run_gated_rms_norm}};
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets with a row

#if HWY_ONCE
namespace packattn::cpu {
namespace {

/// One operation's rows of all targets.
template <class Row>
std::vector<Row> rows_of(Row NormRows::* operation) {
  const std::vector<NormRows> targets = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::norm_rows(),
#endif
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::norm_rows(),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::norm_rows(),
#endif
  };
  std::vector<Row> rows;
  for (const NormRows& target : targets) rows.push_back(target.*operation);
  return rows;
}

}  // namespace

std::span<const KdaImplementation> kda_gate() {
  static const auto rows = rows_of(&NormRows::gate);
  return rows;
}

std::span<const L2NormImplementation> l2norm() {
  static const auto rows = rows_of(&NormRows::l2norm);
  return rows;
}

std::span<const GatedRmsNormImplementation> gated_rms_norm() {
  static const auto rows = rows_of(&NormRows::gated_rms_norm);
  return rows;
}

}  // namespace packattn::cpu
#endif
