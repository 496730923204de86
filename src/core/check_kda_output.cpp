// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <vector>

#include "core/check_kda.h"

namespace packattn {
namespace {

/// [1, T, ...] as [T, ...]: what tells slices of one fused projection apart is their row stride.
TensorView without_batch(const TensorView& x) {
  if (x.rank() < 3 || x.rank() > TensorView::max_rank || x.size(0) != 1) return x;
  std::array<std::int64_t, TensorView::max_rank> shape{}, strides{};
  const auto rank = static_cast<std::size_t>(x.rank() - 1);
  for (std::size_t dim = 0; dim < rank; ++dim) {
    shape[dim] = x.size(static_cast<int>(dim) + 1);
    strides[dim] = x.stride(static_cast<int>(dim) + 1);
  }
  return {x.data(), x.dtype(), x.device(), std::span(shape).first(rank),
          std::span(strides).first(rank)};
}

void check_overlaps(const KdaArgs& args, TensorChecks& checks) {
  const std::array<std::pair<const TensorView*, const char*>, 12> tensors{
      {{&args.out, "out"},
       {&args.state, "state"},
       {&args.final_state, "final_state"},
       {&args.chunk_states, "chunk_states"},
       {&args.q, "q"},
       {&args.k, "k"},
       {&args.v, "v"},
       {&args.g, "g"},
       {&args.beta, "beta"},
       {&args.A_log, "A_log"},
       {&args.dt_bias, "dt_bias"},
       {&args.initial_state, "initial_state"}}};
  constexpr std::size_t outputs = 4;
  std::array<TensorView, tensors.size()> views;
  std::vector<NamedView> named;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    views[i] = without_batch(*tensors[i].first);
    named.push_back({views[i], tensors[i].second});
  }
  checks.disjoint_all(std::span(named).first(outputs), std::span(named).subspan(outputs));
}

}  // namespace

void check_kda_output(const KdaArgs& args, bool q_fits, bool v_fits, CheckedKda& checked,
                      FaultList& faults) {
  TensorChecks checks(faults);
  const NamedView out{args.out, "out"}, q{args.q, "q"};
  if (!checks.given(out, 4, "[B, T, HV, V]")) return;
  KdaProblem& p = checked.problem;
  p.out_dtype = args.out.dtype();
  if (q_fits) {
    if (args.out.dtype() != args.q.dtype()) checks.dtype(out, {args.q.dtype(), DType::f32});
    checks.same_device(out, q);
    if (v_fits) {
      checks.shape(out, {args.q.size(0), args.q.size(1), p.value_heads, p.value_dim});
    }
  }
  checks.writable(out);
  check_overlaps(args, checks);
}

}  // namespace packattn
