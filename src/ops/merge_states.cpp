// SPDX-License-Identifier: Apache-2.0
// Joins two partial attention results over disjoint keys (docs/mathematics.md).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "packattn/attention.h"

#include "core/check_attention.h"
#include "core/check_tensors.h"
#include "core/half.h"
#include "core/select.h"
#include "core/strided_copy.h"
#include "cpu/parallel.h"
#include "cuda/cuda.h"

namespace packattn {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

bool same_view(const TensorView& a, const TensorView& b) {
  if (a.data() != b.data() || a.dtype() != b.dtype() || a.rank() != b.rank()) return false;
  for (int dim = 0; dim < a.rank(); ++dim) {
    if (a.size(dim) != b.size(dim)) return false;
    if (a.size(dim) > 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

void check(const MergeArgs& args, FaultList& faults) {
  TensorChecks checks(faults);
  const NamedView out_a{args.out_a, "out_a"}, lse_a{args.lse_a, "lse_a"};
  const NamedView out_b{args.out_b, "out_b"}, lse_b{args.lse_b, "lse_b"};
  const NamedView out{args.out, "out"}, lse{args.lse, "lse"};

  const bool first_ok = checks.given(out_a, 3, "[T, H, D]");
  if (args.out_a.present()) check_device("out_a", args.out_a.device(), faults);
  if (first_ok) {
    for (const int dim : {1, 2}) {
      if (args.out_a.size(dim) != 0) continue;
      faults.add(Code::zero_size,
                 {.argument = "out_a", .position = dim == 1 ? "its heads" : "its head size"});
    }
    checks.dtype(out_a, {DType::f32, DType::f16, DType::bf16});
    checks.readable(out_a);
  }
  const auto follows = [&](NamedView t, bool is_lse) {
    if (!checks.given(t, is_lse ? 2 : 3, is_lse ? "[H, T]" : "[T, H, D]")) return false;
    if (args.out_a.present()) checks.same_device(t, out_a);
    if (!first_ok) return true;
    const TensorView& a = args.out_a;
    if (is_lse) checks.shape(t, {a.size(1), a.size(0)});
    else checks.shape(t, {a.size(0), a.size(1), a.size(2)});
    return true;
  };
  if (follows(out_b, false)) {
    if (args.out_a.present()) checks.same_dtype(out_b, out_a);
    checks.readable(out_b);
  }
  for (const NamedView& part : {lse_a, lse_b}) {
    if (!follows(part, true)) continue;
    checks.dtype(part, {DType::f32});
    checks.readable(part);
  }
  const bool out_ok = follows(out, false);
  if (out_ok) {
    checks.dtype(out, {DType::f32, DType::f16, DType::bf16});
    checks.writable(out);
  }
  const bool lse_ok = follows(lse, true);
  if (lse_ok) {
    checks.dtype(lse, {DType::f32});
    checks.writable(lse);
  }
  const auto apart = [&](NamedView output, NamedView input, NamedView in_place) {
    if (input.name == in_place.name && same_view(output.view, input.view)) return;
    if (input.view.rank() <= TensorView::max_rank) checks.disjoint(output, input);
  };
  for (const NamedView& input : {out_a, lse_a, out_b, lse_b}) {
    if (out_ok) apart(out, input, out_a);
    if (lse_ok) apart(lse, input, lse_a);
  }
  if (out_ok && lse_ok) checks.disjoint(lse, out);
}

/// Weights of the two parts and the lse of both together.
struct Weights {
  double a = 0, b = 0;
  double lse = -infinity;
  bool use_a, use_b;  ///< a part without keys is not read: 0 * NaN would be NaN

  Weights(double lse_a, double lse_b) : use_a(lse_a != -infinity), use_b(lse_b != -infinity) {
    if (!use_a && !use_b) return;
    const double m = std::max(lse_a, lse_b);
    const double exp_a = std::exp(lse_a - m), exp_b = std::exp(lse_b - m);
    a = exp_a / (exp_a + exp_b);
    b = exp_b / (exp_a + exp_b);
    lse = m + std::log(exp_a + exp_b);
  }
};

/// One token and head.
template <class T, class Out>
void merge_row(const T* a, const T* b, const Weights& weights, std::int64_t dims, Out* out) {
  const auto weight_a = static_cast<float>(weights.a), weight_b = static_cast<float>(weights.b);
  const auto fill = [&](auto&& value) {
    for (std::int64_t d = 0; d < dims; ++d) out[d] = store<Out>(value(d));
  };
  if (weights.use_a && weights.use_b) {
    fill([&](auto d) { return weight_a * load(a[d]) + weight_b * load(b[d]); });
  } else if (weights.use_a) {
    fill([&](auto d) { return weight_a * load(a[d]); });
  } else if (weights.use_b) {
    fill([&](auto d) { return weight_b * load(b[d]); });
  } else {
    fill([](auto) { return 0.0F; });
  }
}

float& lse_at(const TensorView& lse, std::int64_t head, std::int64_t token) {
  return *reinterpret_cast<float*>(at(lse, head, token));
}

template <class T, class Out>
void merge_token(const MergeArgs& args, std::int64_t token) {
  for (std::int64_t head = 0; head < args.out.size(1); ++head) {
    const Weights weights(lse_at(args.lse_a, head, token), lse_at(args.lse_b, head, token));
    merge_row(reinterpret_cast<const T*>(at(args.out_a, token, head)),
              reinterpret_cast<const T*>(at(args.out_b, token, head)), weights, args.out.size(2),
              reinterpret_cast<Out*>(at(args.out, token, head)));
    lse_at(args.lse, head, token) = static_cast<float>(weights.lse);
  }
}

}  // namespace

std::vector<Fault> check_merge_states(const MergeArgs& args) {
  FaultList faults;
  check(args, faults);
  return std::move(faults).take();
}

void merge_states(const MergeArgs& args, const Context& context) {
  FaultList faults;
  check_context_without_list("merge_states", context, faults);
  check(args, faults);
  std::move(faults).throw_if_any();
  if (!args.out_a.device().is_host()) return cuda::merge_states(args, context.stream);

  constexpr std::int64_t chunk = 64;  // tokens a thread takes at a time
  const std::int64_t tokens = args.out.size(0);
  const auto elements = static_cast<double>(args.out.numel());
  const RunContext run{.threads = resolve_threads(context.threads, 2 * elements),
                       .progress = context.progress ? &context.progress : nullptr};
  with_float_type(args.out_a.dtype(), [&]<class T>(T) {
    with_float_type(args.out.dtype(), [&]<class Out>(Out) {
      cpu::parallel_for_items((tokens + chunk - 1) / chunk, run, [&](std::int64_t item, int) {
        const std::int64_t end = std::min(tokens, (item + 1) * chunk);
        for (std::int64_t token = item * chunk; token < end; ++token) {
          merge_token<T, Out>(args, token);
        }
      });
    });
  });
}

}  // namespace packattn
