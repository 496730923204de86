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

/// How `g` becomes the log decay of the state, one value per key channel, at most 0.
enum class GateKind {
  given,     ///< g as it is
  softplus,  ///< -exp(A_log[h]) softplus(g + dt_bias)
  bounded,   ///< lower_bound * sigmoid(exp(A_log[h]) (g + dt_bias)); A_log optional here
};

enum class BetaKind {
  given,        ///< beta as it is
  sigmoid,      ///< sigmoid(beta)
  two_sigmoid,  ///< 2 sigmoid(beta)
};

/// Order of the last two dimensions of a state: [K, V] or [V, K].
enum class StateLayout { k_first, v_first };

/// Kimi Delta Attention. For every token of a sequence, per value head (S in R^{K x V}):
///   P = diag(exp g) S;  u = P^T k;  e = beta (v - u);  S = P + k e^T;  o = S^T (scale q)
/// (Kimi Linear, arXiv:2510.26692; docs/mathematics.md.) With boundaries B must be 1; without
/// them each of the B rows is a sequence of T tokens. N is the number of sequences.
struct KdaArgs {
  TensorView q = {}, k = {};  ///< [B, T, H, K]  fp32, fp16 or bf16
  TensorView v = {};          ///< [B, T, HV, V], HV a multiple of H
  TensorView g = {};          ///< [B, T, HV, K], or [B, T, HV]: one gate a head; q's dtype or fp32
  TensorView beta = {};       ///< [B, T, HV], or [B, T, HV, V] (recurrence only); q's dtype or fp32
  TensorView out = {};        ///< [B, T, HV, V] q's dtype or fp32
  TensorView A_log = {};      ///< [HV] fp32
  TensorView dt_bias = {};    ///< [HV, K] or [HV * K] fp32
  // The state: `state` is read and written in place; or `initial_state` is read (zeros without)
  // and `final_state` written. [N, HV, K, V] or V-first, or [slots, ...] with slots; fp32 or bf16.
  TensorView state = {}, initial_state = {}, final_state = {};
  // Slots: rows of the state pool, [N] or [N, S] int32 or int64. `slots` serves both sides.
  // With [N, S] the state after token t goes to column t.
  TensorView slots = {}, read_slots = {}, write_slots = {};
  TensorView num_accepted_tokens = {};  ///< [N], 1 .. S: start from column num_accepted_tokens - 1
  /// [chunks, HV, K, V] in the state's layout: the state before each chunk.
  TensorView chunk_states = {};
};

struct KdaOptions {
  std::optional<double> scale = {};  ///< of q, after its normalisation; default 1 / sqrt(K)
  GateKind gate = GateKind::given;
  BetaKind beta = BetaKind::given;
  double lower_bound = -5;                       ///< of the bounded gate; finite and below 0
  bool l2norm = false;                           ///< q and k become x / sqrt(sum x^2 + 1e-6) first
  std::optional<StateLayout> state_layout = {};  ///< has to be named when a state is given
  std::int64_t null_slot = -1;                   ///< this slot skips the sequence: output 0
  std::int64_t chunk_size = 64;                  ///< kda_chunk: 16, 32 or 64
};

/// The token recurrence. Throws Error (PA1xxx to PA6xxx) with every fault before anything runs.
PACKATTN_EXPORT void kda_recurrent(const KdaArgs& args, const KdaOptions& options = {},
                                   const Context& context = {});
PACKATTN_EXPORT void kda_recurrent(const KdaArgs& args, const PackedBatch& batch,
                                   const KdaOptions& options = {}, const Context& context = {});
PACKATTN_EXPORT void kda_recurrent(const KdaArgs& args, const BatchSpec& spec,
                                   const KdaOptions& options = {}, const Context& context = {});

/// The chunked form: the same arguments, the same mathematics, matrix products inside chunks.
PACKATTN_EXPORT void kda_chunk(const KdaArgs& args, const KdaOptions& options = {},
                               const Context& context = {});
PACKATTN_EXPORT void kda_chunk(const KdaArgs& args, const PackedBatch& batch,
                               const KdaOptions& options = {}, const Context& context = {});
PACKATTN_EXPORT void kda_chunk(const KdaArgs& args, const BatchSpec& spec,
                               const KdaOptions& options = {}, const Context& context = {});

/// The checks of the form named by `op` (Op::kda_recurrent or Op::kda_chunk), without running.
PACKATTN_EXPORT std::vector<Fault> check_kda(Op op, const KdaArgs& args, const BatchSpec* spec,
                                             const KdaOptions& options = {},
                                             const Context& context = {});
PACKATTN_EXPORT std::vector<Fault> check_kda(Op op, const KdaArgs& args, const PackedBatch& batch,
                                             const KdaOptions& options = {},
                                             const Context& context = {});

/// What each implementation says about a legal call; null batch for the [B, T] form. Throws Error
/// (PA1xxx, PA2xxx, PA6xxx) if the call is not legal.
PACKATTN_EXPORT std::vector<Verdict> why_kda(Op op, const KdaArgs& args, const PackedBatch* batch,
                                             const KdaOptions& options = {},
                                             const Context& context = {});

/// Bytes of scratch memory this call needs, on the device of its tensors; for Context::workspace.
/// Throws Error as the call would.
PACKATTN_EXPORT std::size_t kda_workspace_bytes(Op op, const KdaArgs& args,
                                                const PackedBatch* batch,
                                                const KdaOptions& options = {},
                                                const Context& context = {});

/// Chunks of all sequences, the first dimension of `chunk_states`. Throws Error (PA6016) if the
/// chunk size is not 16, 32 or 64.
PACKATTN_EXPORT std::int64_t kda_chunk_count(const PackedBatch& batch, std::int64_t chunk_size);

}  // namespace packattn
