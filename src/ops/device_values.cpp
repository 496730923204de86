// SPDX-License-Identifier: Apache-2.0
#include "ops/device_values.h"

#include <memory>
#include <vector>

#include "core/check_attention.h"
#include "core/check_kda.h"
#include "cuda/cuda.h"

namespace packattn {
namespace {

/// Tensors of a device as the host's checks take them.
class HostViews {
 public:
  explicit HostViews(void* stream) : stream_(stream) {}

  /// With its values.
  void copy(TensorView& x) {
    if (!x.present() || x.device().is_host()) return;
    std::int64_t first = 0;
    std::int64_t last = 0;
    for (int dim = 0; dim < x.rank(); ++dim) {
      if (x.size(dim) == 0) return describe(x);
      const std::int64_t reach = (x.size(dim) - 1) * x.stride(dim);
      (reach < 0 ? first : last) += reach;
    }
    const auto element = static_cast<std::int64_t>(size_of(x.dtype()));
    auto& bytes = copies_.emplace_back(static_cast<std::size_t>((last - first + 1) * element));
    cuda::read_back(bytes.data(), x.as<std::byte>() + first * element, bytes.size(), x.device(),
                    stream_);
    x = on_host(x, bytes.data() - first * element);
  }
  /// Without: for checks of shapes and addresses.
  static void describe(TensorView& x) {
    if (x.present()) x = on_host(x, x.data());
  }

 private:
  static TensorView on_host(const TensorView& x, void* data) {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    for (int dim = 0; dim < x.rank(); ++dim) {
      shape.push_back(x.size(dim));
      strides.push_back(x.stride(dim));
    }
    return {data, x.dtype(), Device{}, shape, strides, x.read_only()};
  }

  void* stream_;
  std::vector<std::vector<std::byte>> copies_;
};

/// The batch from the values of its description; null if there is none on a device.
std::unique_ptr<detail::BatchState> read_batch(const detail::BatchState& batch, HostViews& host,
                                               FaultList& faults) {
  if (batch.device.is_host()) return nullptr;
  BatchSpec spec = batch.on_device;
  for (TensorView* x : {&spec.cu_seqlens_q, &spec.cu_seqlens_k, &spec.lengths_q, &spec.lengths_k,
                        &spec.starts_q, &spec.starts_k, &spec.seqlens_k, &spec.block_table}) {
    host.copy(*x);
  }
  auto state = std::make_unique<detail::BatchState>();
  detail::parse_batch(spec, *state, faults);
  return state;
}

}  // namespace

void check_device_values(const AttentionArgs& args, const detail::BatchState& batch,
                         const AttentionOptions& options, void* stream, FaultList& faults) {
  if (args.q.device().is_host()) return;
  HostViews host(stream);
  const auto state = read_batch(batch, host, faults);
  if (state == nullptr || !faults.empty()) return;
  AttentionArgs here = args;
  for (TensorView* x : {&here.q, &here.k, &here.v, &here.out, &here.lse}) HostViews::describe(*x);
  AttentionOptions with = options;
  HostViews::describe(with.alibi_slopes);
  HostViews::describe(with.sinks);
  check_attention_call(here, state.get(), with, faults);
}

void check_device_values(Op op, const KdaArgs& args, const detail::BatchState* batch,
                         const KdaOptions& options, void* stream, FaultList& faults) {
  if (args.q.device().is_host()) return;
  HostViews host(stream);
  const auto state = batch != nullptr ? read_batch(*batch, host, faults) : nullptr;
  if (!faults.empty()) return;
  KdaArgs here = args;
  for (TensorView* x :
       {&here.q, &here.k, &here.v, &here.beta, &here.out, &here.A_log, &here.dt_bias, &here.state,
        &here.initial_state, &here.final_state, &here.chunk_states}) {
    HostViews::describe(*x);
  }
  if (options.gate == GateKind::given) host.copy(here.g);
  else HostViews::describe(here.g);
  for (TensorView* x :
       {&here.slots, &here.read_slots, &here.write_slots, &here.num_accepted_tokens}) {
    host.copy(*x);
  }
  check_kda_call(op, here, state != nullptr ? state.get() : batch, options, CheckLevel::full,
                 faults);
}

}  // namespace packattn
