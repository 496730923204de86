// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "packattn/implementation.h"
#include "packattn/packed.h"
#include "packattn/tensor.h"

namespace packattn {

/// Softmax attention over a packed batch: every sequence's queries attend to its own keys.
/// For query head h, key head h / (Hq / Hk), query i, key j of one sequence:
///   x = softmax_scale * q_i . k_j,  softcap,  ALiBi;  lse_i = ln sum_j exp x;
///   out_i = sum_j exp(x - lse_i) v_j          (docs/mathematics.md has every rule)
/// Strides are free as long as the last one is 1.
struct AttentionArgs {
  TensorView q = {};    ///< [Tq, Hq, D]  fp32, fp16 or bf16
  TensorView k = {};    ///< [Tk, Hk, D], or a paged cache [pages, page_size, Hk, D]
  TensorView v = {};    ///< [Tk, Hk, Dv], or [pages, page_size, Hk, Dv]
  TensorView out = {};  ///< [Tq, Hq, Dv] q's dtype, or fp32 for results that will be merged
  TensorView lse = {};  ///< [Hq, Tq] fp32, natural logarithm; optional
};

/// Which corner of the score matrix the diagonal runs into when a sequence has more keys than
/// queries. Shifts causal, window and ALiBi alike.
enum class Align { bottom_right, top_left };

/// Keys within `left` before and `right` after the diagonal are visible; no value, no bound.
struct Window { std::optional<std::int64_t> left = {}, right = {}; };

struct AttentionOptions {
  std::optional<double> softmax_scale = {};  ///< default 1 / sqrt(D)
  bool causal = false;
  Align align = Align::bottom_right;
  Window window = {};
  double softcap = 0;            ///< c > 0: x becomes c tanh(x / c)
  TensorView alibi_slopes = {};  ///< [Hq] or [N, Hq] fp32: x -= slope |i + shift - j|
  TensorView sinks = {};         ///< [Hq] fp32: exp(sink) joins the softmax's denominator
};

/// Throws Error (PA1xxx to PA5xxx), having listed every fault, before anything runs. A query
/// row without visible keys gets out 0 and lse -inf (or its sink).
PACKATTN_EXPORT void attention(const AttentionArgs& args, const PackedBatch& batch,
                               const AttentionOptions& options = {}, const Context& context = {});

/// One call without a prepared batch: faults of the boundaries and of the tensors in one list.
PACKATTN_EXPORT void attention(const AttentionArgs& args, const BatchSpec& spec,
                               const AttentionOptions& options = {}, const Context& context = {});

/// Every fault of the call itself, without running; no GPU is needed to check a call meant for one.
/// Whether an implementation takes the call is for why_attention, memory is met when it runs.
PACKATTN_EXPORT std::vector<Fault> check_attention(const AttentionArgs& args,
                                                   const PackedBatch& batch,
                                                   const AttentionOptions& options = {},
                                                   const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_attention(const AttentionArgs& args, const BatchSpec& spec,
                                                   const AttentionOptions& options = {},
                                                   const Context& context = {});

/// What each implementation says about a legal call; the first that accepts is the one that runs.
/// Throws Error (PA1xxx, PA2xxx) if the call is not legal.
PACKATTN_EXPORT std::vector<Verdict> why_attention(const AttentionArgs& args,
                                                   const PackedBatch& batch,
                                                   const AttentionOptions& options = {},
                                                   const Context& context = {});

/// Bytes of scratch memory this call needs, on the device of its tensors; for Context::workspace.
/// Throws Error as the call would.
PACKATTN_EXPORT std::size_t attention_workspace_bytes(const AttentionArgs& args,
                                                      const PackedBatch& batch,
                                                      const AttentionOptions& options = {},
                                                      const Context& context = {});

/// Joins two partial results over disjoint keys by their lse:
///   lse = logaddexp(lse_a, lse_b),  out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b.
/// A part with lse -inf has weight 0, whatever its out holds. `out` and `lse` may be the views of
/// part a (in place). out [T, H, D] fp32, fp16 or bf16, lse [H, T] fp32. Raises PA1xxx.
struct MergeArgs {
  TensorView out_a = {}, lse_a = {};
  TensorView out_b = {}, lse_b = {};
  TensorView out = {}, lse = {};
};
PACKATTN_EXPORT void merge_states(const MergeArgs& args, const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_merge_states(const MergeArgs& args);

}  // namespace packattn
