// SPDX-License-Identifier: Apache-2.0
// simt/kda_recurrent: the recurrence of KDA, every option, any card from compute capability 8.0.
//
// A warp holds 8 columns of one value head's state in registers, from the first token to the last;
// lane l holds rows l n .. l n + n of each (n = 2, 4, 8 for K up to 64, 128, 256). Warps never
// meet, so the state is read and written once, and what a call of single tokens costs is that
// traffic.
//
//   p = s exp(g)                      decay in place
//   u = sum_k p k,  r = sum_k p q     16 sums of a warp, halved and exchanged five times
//   e = beta (v - u)                  lanes 0 .. 15; o = r + e (k . q) in lanes 16 .. 31
//   s = p + k e
//
// Bits: a column's sums have one order, fixed by K alone.
#include "cuda/kda_columns.cuh"

namespace packattn::cuda {
namespace {

using namespace kda_columns;

constexpr int warps = 4;
/// A single token for columns [first, last): what belongs to all of them is worked out once.
template <int keys, class S>
__device__ void run_token(const KdaParams& p, const KdaSequenceView& s, int head, int first,
                          int last) {
  Token<keys> token;
  token.load(p, s, 0, head);
  ColumnInputs inputs;
  inputs.load(p, s, 0, head, first);
  StateTile<keys> state;
  load_tile<keys, S>(p, p.initial, s.state.initial, head, first, state);
  token.evaluate(p, Gate<keys>(p, head));
  const std::int64_t out = token_offset(p.out, s, 0, head);
  for (int column = first; column < last; column += columns) {
    if (column > first) {
      inputs.load(p, s, 0, head, column);
      load_tile<keys, S>(p, p.initial, s.state.initial, head, column, state);
    }
    step<keys>(p, token, inputs, out, column, state);
    store_tile<keys, S>(p, p.final, s.state.final, head, column, state);
  }
}

/// `span` columns of one value head a warp: more than 8 where there is plenty of work, because the
/// token's own work is then done once for all of them.
template <int keys, class S>
__global__ void __launch_bounds__(32 * warps, keys < 8 ? 3 : 2)
    kda_recurrent_kernel(const __grid_constant__ KdaParams p, const int span, const int parts) {
  const std::int64_t per_position = static_cast<std::int64_t>(p.heads) * parts;
  const std::int64_t units = kda_positions(p) * per_position;
  for (std::int64_t unit = block_index() * warps + warp_index(); unit < units;
       unit += block_count() * warps) {
    const auto within = static_cast<int>(unit % per_position);
    const int head = within / parts;
    const int first = within % parts * span;
    const int last = min(first + span, p.value_dim);
    KdaSequenceView s;
    if (!take_sequence<S>(p, unit / per_position, head, first, last, lane_index(), 32, s)) continue;
    if (s.length == 1 && p.columns.data == nullptr) {
      run_token<keys, S>(p, s, head, first, last);
    } else {
      for (int column = first; column < last; column += columns) {
        run_tokens<keys, S>(p, s, head, column);
      }
    }
  }
}

/// Warps that keep a device busy, at 16 a multiprocessor of the largest ones.
constexpr std::int64_t plenty = 8192;

template <int keys, class S>
void launch_sizes(const KdaParams& p, cudaStream_t stream) {
  const std::int64_t heads = kda_positions(p) * p.heads;
  if (heads == 0) return;
  const auto parts_of = [&](int span) { return (p.value_dim + span - 1) / span; };
  int span = columns;
  while (span < 8 * columns && heads * parts_of(2 * span) >= plenty) span *= 2;
  const std::int64_t units = heads * parts_of(span);
  const std::int64_t blocks = std::min<std::int64_t>((units + warps - 1) / warps, INT32_MAX);
  launch("simt/kda_recurrent", kda_recurrent_kernel<keys, S>, blocks, 32 * warps, 0, stream, p,
         span, parts_of(span));
}

template <class S>
void launch_types(const KdaParams& p, cudaStream_t stream) {
  switch (kda_lane_keys(p.key_dim)) {
    case 2: return launch_sizes<2, S>(p, stream);
    case 4: return launch_sizes<4, S>(p, stream);
    default: return launch_sizes<8, S>(p, stream);
  }
}

}  // namespace

void launch_kda_recurrent(const KdaParams& p, cudaStream_t stream) {
  p.initial.bf16 || p.final.bf16 ? launch_types<BFloat16>(p, stream)
                                 : launch_types<float>(p, stream);
}

}  // namespace packattn::cuda
