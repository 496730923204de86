// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "core/check_kda.h"
#include "core/half.h"

namespace packattn {

void check_gate_arguments(const GateArguments& a, std::int64_t heads, std::int64_t K,
                          FaultList& faults) {
  TensorChecks checks(faults);
  const NamedView A_log{a.A_log, "A_log"}, dt_bias{a.dt_bias, "dt_bias"};
  const bool used = a.gate != GateKind::given;
  if (a.gate == GateKind::softplus && !a.A_log.present()) {
    faults.add(Code::A_log_missing, {.value = "softplus", .limit = "[HV] fp32"});
  }
  for (const NamedView& t : {A_log, dt_bias}) {
    if (!t.view.present()) continue;
    if (!used) {
      faults.add(Code::options_conflict, {.argument = std::string(t.name),
                                          .value = "the given gate, which does not use it"});
    }
    checks.dtype(t, {DType::f32});
    if (a.beside.view.present()) checks.same_device(t, a.beside);
  }
  if (a.A_log.present() && checks.given(A_log, 1, "[HV]")) {
    if (heads >= 0) checks.shape(A_log, {heads});
    checks.readable(A_log);
  }
  if (a.dt_bias.present() && heads >= 0 && K >= 0) {
    const TensorView& bias = a.dt_bias;
    std::int64_t channels = 0;
    if (__builtin_mul_overflow(heads, K, &channels)) channels = INT64_MAX;
    if ((bias.rank() == 2 && bias.size(0) == heads && bias.size(1) == K) ||
        (bias.rank() == 1 && bias.size(0) == channels)) {
      checks.readable(dt_bias);
    } else {
      faults.add(Code::dt_bias_shape,
                 {.argument = "dt_bias",
                  .value = bias.shape_string(),
                  .limit = fmt::format("[{}, {}] or [{}]", heads, K, channels)});
    }
  }
  if (a.gate == GateKind::bounded &&
      (a.lower_bound == 0 || !is_zero_or_positive_float(-a.lower_bound))) {
    faults.add(Code::lower_bound_invalid, {.argument = "lower_bound",
                                           .value = number_text(a.lower_bound),
                                           .limit = "from -3.4e38 to -1.2e-38 (fp32)"});
  }
}

void check_gate_sign(const KdaArgs& args, const CheckedKda& checked, FaultList& faults) {
  const KdaProblem& p = checked.problem;
  if (p.gate != GateKind::given || !p.device.is_host()) return;
  const TensorView& x = args.g;
  const std::int64_t channels = p.gate_per_head ? 1 : p.key_dim;
  with_float_type(x.dtype(), [&](auto type) {
    for (const KdaSequence& s : checked.sequences) {
      for (std::int64_t t = s.start; t < s.start + s.length; ++t) {
        for (std::int64_t i = 0; i < p.value_heads * channels; ++i) {
          const std::int64_t h = i / channels, d = i % channels;
          const std::int64_t at = s.row * x.stride(0) + t * x.stride(1) + h * x.stride(2) + d;
          const float value = load(x.as<decltype(type)>()[at]);
          if (!(value > 0)) continue;
          faults.add(Code::gate_positive,
                     {.argument = "g",
                      .position = p.gate_per_head ? fmt::format("[{}, {}, {}]", s.row, t, h)
                                                  : fmt::format("[{}, {}, {}, {}]", s.row, t, h, d),
                      .value = fmt::format("{}", value)});
          return;
        }
      }
    }
  });
}

}  // namespace packattn
