// SPDX-License-Identifier: Apache-2.0
// The KDA recurrence in vectors; docs/kernels/cpu-kda.md explains and measures it. One pass over
// the state per token, in the order in which the caller's state lies (KdaColumns, KdaRows):
//
//   for d in 0 .. K                  one load and one store of the state
//     s  = S[d] + k'[d] e'           the write of the token before
//     p  = s exp(g[d])               decay, as s + s expm1(g) where that is the exact form
//     u += p k[d];  r += p q[d]      S^T k and S^T q of the decayed state
//   e = beta (v - u)                 written by the next token's pass
//   o = r + e (k . q)                = (P + k e^T)^T q
//
// Tokens come in tiles: gates, norms and betas of a tile are evaluated once, then each block of the
// state takes the tile while it is in the first-level cache.
#include <algorithm>
#include <array>

#include "cpu/cpu.h"
#include "cpu/kda_schedule.h"
#include "cpu/parallel.h"
#include "cpu/simd_support.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kda_recurrent.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
#include "cpu/kda_columns-inl.h"
#include "cpu/kda_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

template <class Form>
void run_item(const KdaCall& call, const KdaItem& item, float* memory) {
  const KdaProblem& p = call.problem;
  const KdaSequence& s = call.sequences[item.sequence];
  const Scratch w(p, item.columns, Form::unit, memory);
  const KdaInputs in(call, s, item.head);
  Form::load(call, item, w);
  std::fill_n(w.pending, w.C, 0.0F);
  // With a state to store after every token, no write may stay pending.
  const std::int64_t tile = p.slot_columns > 0 ? 1 : tile_tokens;
  for (std::int64_t first = 0; first < s.length; first += tile) {
    const std::int64_t count = std::min(tile, s.length - first);
    prepare_tile(in, item, first, count, p, w);
    Form::run_tile(in, call, item, first, count, first > 0 && p.slot_columns == 0, w);
    write_rows(call, item, first, count, w.C, w.v);
    if (p.slot_columns > 0) {
      Form::finish(call, w);
      const auto column = item.sequence * static_cast<std::size_t>(p.slot_columns);
      Form::store(call, item, call.column_slots[column + static_cast<std::size_t>(first)], w);
    }
  }
  if (s.final >= 0) Form::finish_into(call, item, s.final, w);
}

// Columns of either form come in multiples of this.
constexpr std::int64_t unit = std::max(KdaColumns::unit, KdaRows::unit);

std::size_t worker_bytes(const KdaProblem& p, std::int64_t columns) {
  return static_cast<std::size_t>(Scratch(p, columns, unit, nullptr).floats) * sizeof(float);
}

std::shared_ptr<const Plan> plan(const KdaCall& call, int threads) {
  return KdaSchedule::make(call, threads, unit, worker_bytes);
}

void run(const KdaCall& call, const Plan& made, const RunContext& context) {
  const auto& schedule = static_cast<const KdaSchedule&>(made);
  // One choice for all lengths: a sequence in pieces has the bits of the whole.
  const auto run_form =
      call.problem.state_layout == StateLayout::k_first ? run_item<KdaColumns> : run_item<KdaRows>;
  parallel_for_items(schedule.items, context, [&](std::int64_t index, int worker) {
    const KdaItem item = schedule.item(index);
    if (call.sequences[item.sequence].skipped) return;
    std::byte* memory =
        context.workspace.data() + static_cast<std::size_t>(worker) * schedule.worker_bytes;
    run_form(call, item, reinterpret_cast<float*>(memory));
  });
}

constexpr std::string_view name = HWY_TARGET == HWY_AVX3   ? "cpu/kda_recurrent.avx512"
                                  : HWY_TARGET == HWY_AVX2 ? "cpu/kda_recurrent.avx2"
                                                           : "cpu/kda_recurrent.neon";

std::optional<Fault> decline(const KdaCall&) { return decline_simd(name, HWY_TARGET); }

}  // namespace

KdaImplementation kda_recurrent_row() { return {name, decline, plan, run}; }

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets with a row

#if HWY_ONCE
namespace packattn::cpu {

std::span<const KdaImplementation> kda_recurrent() {
  static const std::vector<KdaImplementation> rows = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::kda_recurrent_row(),
#endif
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::kda_recurrent_row(),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::kda_recurrent_row(),
#endif
  };
  return rows;
}

}  // namespace packattn::cpu
#endif
