// SPDX-License-Identifier: Apache-2.0
// The chunked form of KDA in fp32 vectors; docs/kernels/cpu-kda.md explains and measures it.
// Whatever the chunk size, the state moves on every 16 tokens: without matrix units a longer step
// only adds work that grows with its length. So the bits do not depend on the chunk size either.
//
//   D_ij[d] = exp(g_{j+1} + .. + g_i), a product of factors of single tokens, all <= 1
//   kept k  : k_j D_ij for every j <= i, decayed step by step            [16][K]
//   A_ij = beta_i k_i . (kept k_j), B_ij = q_i . (kept k_j)              at step i
//   R = beta (V - (K D_i0) S),  O = (Q D_i0) S                           products with the state
//   E_i = R_i - sum_{j<i} A_ij E_j,  O_i += sum_{j<=i} B_ij E_j          row by row
//   S = exp(g_1 + .. + g_C) S + (kept K)^T E                             products with the state
//
// A row takes nothing from later rows, not even times zero.
#include <algorithm>

#include "cpu/cpu.h"
#include "cpu/kda_amx.h"
#include "cpu/kda_schedule.h"
#include "cpu/parallel.h"
#include "cpu/simd_support.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kda_chunk.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
#include "cpu/kda_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

// Products with the state hold block_rows x vectors sums in registers: 16 of 32, or 8 of AVX2's 16.
constexpr int block_rows = HWY_TARGET == HWY_AVX2 ? 4 : 8;

/// Calls f(first, rows) for 0 .. count in groups of block_rows, and of 4, 2, 1 at the end; `rows`
/// is a compile-time constant. A row's sum is the same in any group.
template <class F>
HWY_INLINE void for_each_group(std::int64_t count, F&& f) {
  std::int64_t i = 0;
  for (; i + block_rows <= count; i += block_rows) f(i, std::integral_constant<int, block_rows>());
  for (; i + 4 <= count; i += 4) f(i, std::integral_constant<int, 4>());
  for (; i + 2 <= count; i += 2) f(i, std::integral_constant<int, 2>());
  for (; i < count; ++i) f(i, std::integral_constant<int, 1>());
}

/// x S for `Rows` rows x, [Rows][K] -> [Rows][block].
template <int Rows>
HWY_INLINE void multiply(std::int64_t K, const float* HWY_RESTRICT x, std::int64_t stride,
                         const float* HWY_RESTRICT S, Vec (&sum)[Rows][vectors]) {
  for (auto& row : sum) {
    for (Vec& s : row) s = hn::Zero(df);
  }
  for (std::int64_t d = 0; d < K; ++d, ++x, S += block) {
    Vec s[vectors];
    for (int n = 0; n < vectors; ++n) s[n] = hn::LoadU(df, S + n * lanes);
    for (int r = 0; r < Rows; ++r) {
      const Vec xd = hn::Set(df, x[r * stride]);
      for (int n = 0; n < vectors; ++n) sum[r][n] = hn::MulAdd(xd, s[n], sum[r][n]);
    }
  }
}

/// R into w.e, and the part of O that comes from the state over v, for one block of columns.
void read_state(std::int64_t K, std::int64_t count, const float* S, float* v, const Scratch& w) {
  for_each_group(count, [&](std::int64_t i, auto rows) HWY_ATTR {
    Vec u[rows()][vectors];
    multiply<rows()>(K, w.keys_from_start() + i * w.K, w.K, S, u);
    for (int r = 0; r < rows(); ++r) {
      const Vec beta = hn::Set(df, w.beta[i + r]);
      for (int n = 0; n < vectors; ++n) {
        const Vec missing = hn::Sub(hn::LoadU(df, v + (i + r) * w.C + n * lanes), u[r][n]);
        hn::StoreU(hn::Mul(beta, missing), df, w.e + (i + r) * block + n * lanes);
      }
    }
  });
  for_each_group(count, [&](std::int64_t i, auto rows) HWY_ATTR {
    Vec o[rows()][vectors];
    multiply<rows()>(K, w.queries_from_start() + i * w.K, w.K, S, o);
    for (int r = 0; r < rows(); ++r) {
      for (int n = 0; n < vectors; ++n) hn::StoreU(o[r][n], df, v + (i + r) * w.C + n * lanes);
    }
  });
}

/// S = exp(sum of gates) S + (kept K)^T E for one block of columns.
void write_state(std::int64_t K, std::int64_t count, float* HWY_RESTRICT S, const Scratch& w) {
  for_each_group(K, [&](std::int64_t d, auto rows) HWY_ATTR {
    Vec s[rows()][vectors];
    for (int r = 0; r < rows(); ++r) {
      const Vec decay = hn::Set(df, w.decay[d + r]), keep = hn::Set(df, w.keep[d + r]);
      for (int n = 0; n < vectors; ++n) {
        const Vec old = hn::LoadU(df, S + (d + r) * block + n * lanes);
        s[r][n] = hn::MulAdd(old, decay, hn::And(old, keep));
      }
    }
    const float *kept = w.kept + d, *e = w.e;
    for (std::int64_t j = 0; j < count; ++j, kept += w.K, e += block) {
      Vec ej[vectors];
      for (int n = 0; n < vectors; ++n) ej[n] = hn::LoadU(df, e + n * lanes);
      for (int r = 0; r < rows(); ++r) {
        const Vec k = hn::Set(df, kept[r]);
        for (int n = 0; n < vectors; ++n) s[r][n] = hn::MulAdd(k, ej[n], s[r][n]);
      }
    }
    for (int r = 0; r < rows(); ++r) {
      for (int n = 0; n < vectors; ++n) hn::StoreU(s[r][n], df, S + (d + r) * block + n * lanes);
    }
  });
}

void run_item(const KdaCall& call, const KdaItem& item, float* memory) {
  const KdaProblem& p = call.problem;
  const KdaSequence& s = call.sequences[item.sequence];
  const Scratch w(p, item.columns, memory);
  const KdaInputs in(call, s, item.head);
  // The sums of four kept keys are taken together, also where fewer tokens have been seen.
  std::fill_n(w.kept, step_tokens * w.K, 0.0F);
  load_columns(call, item, block, w.state);
  for (std::int64_t first = 0; first < s.length; first += step_tokens) {
    if (call.args.chunk_states.present() && first % p.chunk_size == 0) {
      store_columns(call, call.args.chunk_states, item.first_chunk + first / p.chunk_size, item,
                    block, w.state);
    }
    const std::int64_t count = std::min(step_tokens, s.length - first);
    prepare(in, item, first, count, w);
    for (std::int64_t c = 0; c < w.C; c += block) {
      float* S = w.state + c * p.key_dim;
      // A share of the next step's rows with every block: together they would flood the queues.
      for (std::int64_t i = c / block; i < step_tokens; i += w.C / block) {
        in.prefetch(first + count + i);
      }
      read_state(p.key_dim, count, S, w.v + c, w);
      solve(count, w.v + c, w);
      write_state(p.key_dim, count, S, w);
    }
    write_rows(call, item, first, count, w.C, w.v);
  }
  store_columns(call, call.final, s.final, item, block, w.state);
}

std::size_t worker_bytes(const KdaProblem& p, std::int64_t columns) {
  return static_cast<std::size_t>(Scratch(p, columns, nullptr).floats) * sizeof(float);
}

std::shared_ptr<const Plan> plan(const KdaCall& call, int threads) {
  return KdaSchedule::make(call, threads, block, worker_bytes);
}

void run(const KdaCall& call, const Plan& made, const RunContext& context) {
  const auto& schedule = static_cast<const KdaSchedule&>(made);
  parallel_for_items(schedule.items, context, [&](std::int64_t index, int worker) {
    const KdaItem item = schedule.item(index);
    if (call.sequences[item.sequence].skipped) return;
    std::byte* memory =
        context.workspace.data() + static_cast<std::size_t>(worker) * schedule.worker_bytes;
    run_item(call, item, reinterpret_cast<float*>(memory));
  });
}

constexpr std::string_view name = HWY_TARGET == HWY_AVX3   ? "cpu/kda_chunk.avx512"
                                  : HWY_TARGET == HWY_AVX2 ? "cpu/kda_chunk.avx2"
                                                           : "cpu/kda_chunk.neon";

std::optional<Fault> decline(const KdaCall&) { return decline_simd(name, HWY_TARGET); }

}  // namespace

KdaImplementation kda_chunk_row() { return {name, decline, plan, run}; }

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets with a row

#if HWY_ONCE
namespace packattn::cpu {

std::span<const KdaImplementation> kda_chunk() {
  static const std::vector<KdaImplementation> rows = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::kda_chunk_row(),
#endif
      // Behind AVX-512, which took 0.65 of its time on a Xeon with AMX (docs/kernels/amx.md).
      amx_kda_chunk(),
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::kda_chunk_row(),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::kda_chunk_row(),
#endif
  };
  return rows;
}

}  // namespace packattn::cpu
#endif
