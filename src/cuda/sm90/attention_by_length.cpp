// SPDX-License-Identifier: Apache-2.0
// sm90/attention: the sequences of few query tokens to attention_decode, all others to
// attention_forward, in one call. A sequence's own length decides who computes it, so its bits do
// not depend on what else is in the batch.
#include "cuda/sm90/attention_decode.h"
#include "cuda/sm90/attention_forward.h"
#include "cuda/sm90/sm90.h"

namespace packattn::cuda::sm90 {
namespace {

constexpr std::string_view name = "sm90/attention";

/// One schedule for both: a short sequence is one tile of either.
struct BothPlan : Plan {
  std::shared_ptr<const ForwardPlan> forward;
  DecodePlan decode;
};

std::optional<Fault> decline(const AttentionCall& call) { return decline_hopper(name, call); }

std::shared_ptr<const Plan> plan(const AttentionCall& call, int) {
  const auto result = std::make_shared<BothPlan>();
  result->forward = plan_forward(call);
  if (const auto bucket = decode_bucket(call.problem)) {
    result->decode = plan_decode(call, *bucket, result->forward->schedule.tile_bound());
  }
  result->workspace_bytes = result->forward->workspace_bytes + result->decode.workspace_bytes();
  return result;
}

void run(const AttentionCall& call, const Plan& base, const RunContext& context) {
  const auto& planned = static_cast<const BothPlan&>(base);
  AttentionRun now(call, context, planned, planned.forward->schedule);
  if (planned.decode.any) {
    now.params.decode_tokens = decode_tokens(now.params.group);
    run_decode(planned.decode, call, now);
  }
  if (planned.decode.others) run_forward(*planned.forward, call, now);
}

}  // namespace

AttentionImplementation attention_by_length() {
  return {.name = name, .decline = decline, .plan = plan, .run = run, .on_host = false};
}

}  // namespace packattn::cuda::sm90
