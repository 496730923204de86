// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention_params.h"

#include <algorithm>

namespace packattn::cuda {

std::int64_t key_bound(const AttentionCall& call) {
  if (call.batch.host_known()) return call.batch.max_seqlen_k();
  if (!call.problem.paged) return call.args.k.size(0);
  return call.batch.state().pages_per_sequence * call.problem.page_size;
}

namespace {

/// The run's stream, once what an earlier call left there has been raised.
cudaStream_t clear_stream(const AttentionCall& call, const RunContext& context) {
  const cudaStream_t stream = stream_of(context);
  raise_earlier_fault(call.problem.device.index, stream);
  return stream;
}

}  // namespace

AttentionRun::AttentionRun(const AttentionCall& call, const RunContext& context, const Plan& plan,
                           const Schedule& schedule)
    : guard(call.problem.device),
      stream(clear_stream(call, context)),
      workspace(context, plan.workspace_bytes),
      params(attention_params(call)) {
  const PlannerInput input =
      planner_input(call.batch, call.args.q.size(0), call.args.k.size(0), call.args.k.size(0),
                    call.problem.page_size, schedule.tile_rows());
  params.batch = schedule.prepare(input, workspace, stream);
}

AttentionParams attention_params(const AttentionCall& call) {
  const AttentionArgs& a = call.args;
  const AttentionProblem& p = call.problem;
  const auto rows = [](const TensorView& t) { return Rows{t.data(), t.stride(0), t.stride(1)}; };
  const auto keys = [&](const TensorView& t) {
    return KeyRows{t.data(), t.stride(-3), t.stride(-2), p.paged ? t.stride(0) : 0};
  };
  const auto aligned = [](const TensorView& t) {
    bool fine = reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0;
    const auto bytes = static_cast<std::int64_t>(size_of(t.dtype()));
    for (int dim = 0; dim + 1 < t.rank(); ++dim) {
      fine = fine && (t.size(dim) == 1 || t.stride(dim) * bytes % 16 == 0);
    }
    return fine;
  };
  AttentionParams params{};
  params.q = rows(a.q);
  params.out = rows(a.out);
  params.k = keys(a.k);
  params.v = keys(a.v);
  params.lse = a.lse.as<float>();
  if (a.lse.present()) params.lse_stride = a.lse.stride(0);
  params.page_size = static_cast<std::int32_t>(p.page_size);
  if (const TensorView& slopes = call.options.alibi_slopes; slopes.present()) {
    params.slopes = slopes.as<const float>();
    params.slopes_head_stride = slopes.stride(-1);
    params.slopes_sequence_stride = slopes.rank() == 2 ? slopes.stride(0) : 0;
  }
  if (const TensorView& sinks = call.options.sinks; sinks.present()) {
    params.sinks = sinks.as<const float>();
    params.sinks_stride = sinks.stride(0);
  }
  params.heads_k = static_cast<std::int32_t>(p.heads_k);
  params.group = static_cast<std::int32_t>(p.group());
  params.head_dim = static_cast<std::int32_t>(p.head_dim);
  params.value_dim = static_cast<std::int32_t>(p.value_dim);
  params.scale = static_cast<float>(p.scale);
  params.softcap = static_cast<float>(p.softcap);
  params.plain = p.softcap == 0 && !p.alibi && p.scale > 0;
  params.left = static_cast<std::int32_t>(std::min(p.mask.left, longest_sequence));
  params.right = static_cast<std::int32_t>(std::min(p.mask.right, longest_sequence));
  params.bottom_right = p.mask.align == Align::bottom_right;
  params.out_fp32 = p.out_dtype == DType::f32;
  params.aligned = aligned(a.q) && aligned(a.k) && aligned(a.v);
  return params;
}

}  // namespace packattn::cuda
