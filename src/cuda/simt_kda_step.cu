// SPDX-License-Identifier: Apache-2.0
// simt/kda_recurrent for decoding, one token a sequence: what counts is that states are read and
// written at the rate of a copy, from the first microsecond on.
//
// One launch. All heads of all sequences are one list of chunks of 8 columns, and every warp has an
// equal run of it. Four chunks of a warp are on their way at any time, also across heads and
// sequences, so a warp never starts anew; the norms, gates and k . q of a head are worked out once
// for the chunks that a warp has of it. While the first chunks come, the block looks at boundaries
// and slots. What is not one token and a state of its own goes a slower way, chunk by chunk.
//
//   fetch 4 chunks │ all entries right? │ for each chunk: take, fetch the next but 3, step, store
//
// Each lane copies to shared memory what it reads from there itself, so no warp waits for another.
// Arithmetic and bits are those of kda_columns.cuh.
#include "cuda/kda_columns.cuh"
#include "cuda/kda_settle.cuh"

namespace packattn::cuda {
namespace {

using namespace kda_columns;

constexpr int warps = 4;
constexpr int depth = 4;

/// Chunk number `index` of the list: 8 columns from `column` on of a head at a position.
struct Cursor {
  std::int32_t position, head, column;

  __device__ Cursor(const KdaParams& p, std::int32_t index) {
    const std::int32_t parts = (p.value_dim + columns - 1) / columns;
    column = index % parts * columns;
    head = index / parts % p.heads;
    position = index / parts / p.heads;
  }
  __device__ void advance(const KdaParams& p) {
    column += columns;
    if (column < p.value_dim) return;
    column = 0;
    if (++head < p.heads) return;
    head = 0;
    ++position;
  }
};

/// A warp's states in V-first order on their way from memory.
template <int keys, class S>
struct Ring {
  using Piece = Run<S, keys>;  ///< a lane's keys of one column
  using Storage = Piece[depth][columns][32];

  __device__ Ring(const KdaParams& p, const kda_settle::Input& in, Storage& storage,
                  std::int32_t begin, std::int32_t end)
      : storage_(storage), at_(p, begin), left_(end - begin) {
    find_row(p, in);
#pragma unroll 1
    for (int stage = 0; stage < depth; ++stage) fetch(p, in, stage);
  }
  /// Chunks come in order.
  __device__ void take(const KdaParams& p, const kda_settle::Input& in, StateTile<keys>& s) {
    copy_async_wait<depth - 1>();
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const Piece piece = storage_[stage_][c][lane_index()];
#pragma unroll
      for (int i = 0; i < keys; ++i) s[c][i] = widen(piece.x[i]);
    }
    fetch(p, in, stage_);
    stage_ = (stage_ + 1) % depth;
  }

 private:
  __device__ void find_row(const KdaParams& p, const kda_settle::Input& in) {
    row_ = at_.position < p.count ? kda_settle::row_of(p, in, at_.position).initial : -1;
  }
  __device__ void fetch(const KdaParams& p, const kda_settle::Input& in, int stage) {
    if (left_ > 0) {
      const int first = lane_index() * keys;
      const bool mine = row_ >= 0 && first < p.key_dim;
      const S* from = row_ >= 0 ? state_of<S>(p.initial, row_, at_.head) +
                                      at_.column * p.initial.outer_stride + first
                                : nullptr;
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        Piece& to = storage_[stage][c][lane_index()];
        if (mine && at_.column + c < p.value_dim) copy(to, from + c * p.initial.outer_stride);
        else to = Piece{};
      }
      const std::int32_t position = at_.position;
      at_.advance(p);
      if (--left_ > 0 && at_.position != position) find_row(p, in);
    }
    copy_async_commit();
  }
  __device__ static void copy(Piece& to, const S* from) {
    constexpr int bytes = sizeof(Piece);
    constexpr int word = bytes < 16 ? bytes : 16;
#pragma unroll
    for (int at = 0; at < bytes; at += word) {
      copy_async<word>(reinterpret_cast<std::byte*>(&to) + at,
                       reinterpret_cast<const std::byte*>(from) + at);
    }
  }

  Storage& storage_;
  Cursor at_;
  std::int32_t left_;
  std::int64_t row_ = -1;
  int stage_ = 0;
};

template <int keys, class S>
__device__ void store_columns(const KdaParams& p, std::int64_t row, const Cursor& at,
                              const StateTile<keys>& s) {
  const int first = lane_index() * keys;
  if (row < 0 || first >= p.key_dim) return;
  S* to = state_of<S>(p.final, row, at.head) + at.column * p.final.outer_stride + first;
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    if (at.column + c < p.value_dim) {
      Run<S, keys> run;
#pragma unroll
      for (int i = 0; i < keys; ++i) run.x[i] = narrow<S>(s[c][i]);
      *reinterpret_cast<Run<S, keys>*>(to + c * p.final.outer_stride) = run;
    }
  }
}

__device__ kda_settle::Settled settled(const KdaParams& p, const kda_settle::Input& in,
                                       const Cursor& at, bool wrong, bool reports) {
  kda_settle::Settled x = kda_settle::glimpse(p, in, at.position);
  if (!wrong) return x;
  // A copy, so that the usual one need not lie in memory.
  kda_settle::Settled closer = x;
  kda_settle::look_closer(p, in, at.position, reports, closer);
  return closer;
}

/// A chunk that is not one token: rows that belong to nobody, a sequence without tokens, with more,
/// or without a state of its own.
template <int keys, class S>
__device__ __noinline__ void run_other(const KdaParams& p, const kda_settle::Input& in,
                                       const std::int32_t index, bool wrong) {
  const Cursor at(p, index);
  const kda_settle::Settled x = settled(p, in, at, wrong, false);
  const KdaSequenceView& s = x.s;
  const int last = min(at.column + columns, p.value_dim);
  const auto clear = [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    clear_rows(p, row, begin, end, at.head, at.column, last, lane_index(), 32);
  };
  clear(0, x.gap.begin, x.gap.end);
  if (!x.valid) return;
  if (s.length == 0) {
    pass_state<S>(p, s.state, at.head, at.column, last, lane_index(), 32);
  } else if (s.state.skipped != 0) {
    clear(s.row, s.start, s.start + s.length);
  } else {
    run_tokens<keys, S>(p, s, at.head, at.column);
  }
}

template <int keys, class S>
struct Shared {
  typename Ring<keys, S>::Storage states[warps];
  kda_settle::Shared settle;
};

/// Chunks total g / G .. total (g + 1) / G of `total` for warp g of G.
template <int keys, class S>
__global__ void __launch_bounds__(32 * warps, keys < 8 ? 3 : 1)
    kda_step_kernel(const __grid_constant__ KdaParams p,
                    const __grid_constant__ kda_settle::Input in, const std::int32_t total) {
  auto& shared = *shared_memory<Shared<keys, S>>();
  const std::int64_t number = block_index() * warps + warp_index();
  const std::int64_t count = block_count() * warps;
  const auto begin = static_cast<std::int32_t>(total * number / count);
  const auto end = static_cast<std::int32_t>(total * (number + 1) / count);
  Ring<keys, S> ring(p, in, shared.states[warp_index()], begin, end);
  const bool wrong = kda_settle::suspicious(p, in, shared.settle);

  Cursor at(p, begin);
  KdaSequenceView s{};
  Token<keys> token;
  bool usual = false;
  bool fresh = true;  // another position or head than the chunk before
  bool moved = true;  // another position
  for (std::int32_t i = begin; i < end; ++i) {
    if (moved) {
      const bool reports = at.head == 0 && at.column == 0;
      const kda_settle::Settled x = settled(p, in, at, wrong, reports);
      usual = x.valid && x.s.length == 1 && x.s.state.skipped == 0 && x.gap.begin >= x.gap.end;
      s = x.s;
    }
    ColumnInputs inputs;
    if (usual) {
      inputs.load(p, s, 0, at.head, at.column);
      if (fresh) {
        token.load(p, s, 0, at.head);
        token.evaluate(p, Gate<keys>(p, at.head));
      }
    }
    StateTile<keys> state;
    ring.take(p, in, state);
    if (usual) {
      step<keys>(p, token, inputs, token_offset(p.out, s, 0, at.head), at.column, state);
      store_columns<keys, S>(p, s.state.final, at, state);
    } else {
      run_other<keys, S>(p, in, i, wrong);
    }
    const Cursor before = at;
    at.advance(p);
    moved = at.position != before.position;
    fresh = moved || at.head != before.head;
  }
}

template <int keys, class S>
void launch_sizes(const KdaParams& p, const kda_settle::Input& in, int multiprocessors,
                  cudaStream_t stream) {
  const bool gaps = p.batch.sequences != nullptr || in.boundaries.data != nullptr;
  const std::int64_t parts = (p.value_dim + columns - 1) / columns;
  const std::int64_t total = (p.count + (gaps ? 1 : 0)) * parts * p.heads;
  if (total == 0) return;
  // As many blocks as run at once; fewer chunks are spread over as many blocks as there are.
  const std::int64_t most = multiprocessors * (keys < 8 ? 3 : 1);
  const std::int64_t blocks = std::min((total + warps - 1) / warps, most);
  launch("simt/kda_recurrent", kda_step_kernel<keys, S>, blocks, 32 * warps,
         sizeof(Shared<keys, S>), stream, p, in, static_cast<std::int32_t>(total));
}

template <class S>
void launch_types(const KdaParams& p, const kda_settle::Input& in, int multiprocessors,
                  cudaStream_t stream) {
  switch (kda_lane_keys(p.key_dim)) {
    case 2: return launch_sizes<2, S>(p, in, multiprocessors, stream);
    case 4: return launch_sizes<4, S>(p, in, multiprocessors, stream);
    default: return launch_sizes<8, S>(p, in, multiprocessors, stream);
  }
}

}  // namespace

void launch_kda_step(const KdaParams& p, const KdaStepInput& given, cudaStream_t stream) {
  const kda_settle::Input in{.slots = SlotInput(p, given.slots),
                             .resolve = given.resolve,
                             .capacity = given.capacity,
                             .boundaries = given.boundaries,
                             .rows = given.rows,
                             .status = given.status};
  p.initial.bf16 || p.final.bf16 ? launch_types<BFloat16>(p, in, given.multiprocessors, stream)
                                 : launch_types<float>(p, in, given.multiprocessors, stream);
}

}  // namespace packattn::cuda
