// SPDX-License-Identifier: Apache-2.0
// The list's row of the chunked form of KDA on AMX tiles; the arithmetic is in kda_amx-inl.h.
#include "cpu/kda_amx.h"

#include "cpu/amx_support.h"
#include "cpu/parallel.h"
#include "errors/fault_list.h"

namespace packattn::cpu {
namespace {

constexpr std::string_view name = "cpu/kda_chunk.amx_bf16";
constexpr std::int64_t column_block = 32;  ///< worked on together

std::optional<Fault> decline(const KdaCall& call) {
  if (auto missing = decline_amx(name)) return missing;
  if (call.problem.dtype != DType::f32) return {};
  return make_fault(Code::dtype_unsupported, {.argument = std::string(name),
                                              .value = to_string(call.problem.dtype),
                                              .limit = "bf16 and fp16"});
}

std::shared_ptr<const Plan> plan(const KdaCall& call, int threads) {
  return KdaSchedule::make(call, threads, column_block, amx_kernels().kda->worker_bytes);
}

void run(const KdaCall& call, const Plan& made, const RunContext& context) {
  const auto& schedule = dynamic_cast<const KdaSchedule&>(made);
  const AmxKda& kernel = *amx_kernels().kda;
  parallel_for_items(schedule.items, context, [&](std::int64_t index, int worker) {
    const KdaItem item = schedule.item(index);
    if (call.sequences[item.sequence].skipped) return;
    kernel.run_item(
        call, item,
        context.workspace.data() + static_cast<std::size_t>(worker) * schedule.worker_bytes);
  });
}

}  // namespace

KdaImplementation amx_kda_chunk() {
  const auto takes = [](const KdaCall& call) {
    return has_amx() && call.problem.dtype != DType::f32;
  };
  return {name, decline, plan, run, true, takes};
}

}  // namespace packattn::cpu
