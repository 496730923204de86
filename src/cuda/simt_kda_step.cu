// SPDX-License-Identifier: Apache-2.0
// simt/kda_recurrent for decoding: few tokens a sequence, so what counts is that states are read
// and written at the rate of a copy, from the first microsecond on.
//
// One launch. A block belongs to one sequence; a warp takes up to 32 columns of a head's state, and
// asks for all of them at once. While they and the token are on their way, the block looks at
// boundaries and slots: a state that turns out not to be the sequence's is dropped unread.
//
//   copy 4 x 8 columns │ settle │ for each token: norms, gates │ for 8 columns: take, step, store
//
// Each lane copies to shared memory what it reads from there itself, so no warp waits for another.
// Shared memory holds 16 KiB of a warp's state in flight where registers would hold 4 (measured:
// docs/kernels/simt-kda.md), and the state between two tokens. Arithmetic and bits are those of
// kda_columns.cuh.
#include "cuda/kda_columns.cuh"
#include "cuda/kda_settle.cuh"

namespace packattn::cuda {
namespace {

using namespace kda_columns;

constexpr int warps = 4;

/// A warp's columns of a head's state, 8 a stage: on their way from memory, and in fp32 between two
/// tokens.
template <int keys, class S>
class Stages {
 public:
  static constexpr int depth = keys < 8 ? 4 : 2;
  /// A lane's keys of one column.
  struct alignas(keys < 4 ? 8 : 16) Place {
    std::byte bytes[keys * sizeof(float)];
    template <class T>
    __device__ Run<T, keys>& as() {
      return *reinterpret_cast<Run<T, keys>*>(bytes);
    }
  };
  using Storage = Place[depth][columns][32];

  __device__ Stages(const KdaParams& p, Storage& storage) : p_(p), storage_(storage) {}

  /// Columns first .. last of a row; -1 for zeros.
  __device__ void fetch(std::int64_t row, int head, int first, int last) {
    empty_ = row < 0;
    if (empty_) return;
    const bool mine = lane_index() * keys < p_.key_dim;
    const S* from =
        state_of<S>(p_.initial, row, head) + first * p_.initial.outer_stride + lane_index() * keys;
#pragma unroll 1
    for (int stage = 0; stage < depth; ++stage) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        Place& place = storage_[stage][c][lane_index()];
        if (mine && first + stage * columns + c < last) copy(place, from);
        else place.template as<float>() = {};
        from += p_.initial.outer_stride;
      }
      copy_async_commit();
    }
  }
  /// As it was fetched; stages come in order.
  __device__ void take(int stage, StateTile<keys>& s) const {
    copy_async_commit();  // an empty group for each stage taken keeps the count that is waited for
    copy_async_wait<depth>();
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const Run<S, keys> run = storage_[stage][c][lane_index()].template as<S>();
#pragma unroll
      for (int i = 0; i < keys; ++i) s[c][i] = empty_ ? 0.0F : widen(run.x[i]);
    }
  }
  __device__ void keep(int stage, const StateTile<keys>& s) {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#pragma unroll
      for (int i = 0; i < keys; ++i)
        storage_[stage][c][lane_index()].template as<float>().x[i] = s[c][i];
    }
  }
  __device__ void take_kept(int stage, StateTile<keys>& s) const {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#pragma unroll
      for (int i = 0; i < keys; ++i)
        s[c][i] = storage_[stage][c][lane_index()].template as<float>().x[i];
    }
  }
  __device__ void drop() const { copy_async_wait<0>(); }

 private:
  /// To the beginning of their place, as they are.
  __device__ static void copy(Place& to, const S* from) {
    constexpr int bytes = keys * sizeof(S);
    constexpr int word = bytes < 16 ? bytes : 16;
#pragma unroll
    for (int at = 0; at < bytes; at += word) {
      copy_async<word>(to.bytes + at, reinterpret_cast<const std::byte*>(from) + at);
    }
  }

  const KdaParams& p_;
  Storage& storage_;
  bool empty_ = true;
};

template <int keys, class S>
__device__ void store_columns(const KdaParams& p, std::int64_t row, int head, int column,
                              const StateTile<keys>& s) {
  const int first = lane_index() * keys;
  if (first >= p.key_dim) return;
  S* to = state_of<S>(p.final, row, head) + column * p.final.outer_stride + first;
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    if (column + c < p.value_dim) {
      Run<S, keys> run;
#pragma unroll
      for (int i = 0; i < keys; ++i) run.x[i] = narrow<S>(s[c][i]);
      *reinterpret_cast<Run<S, keys>*>(to) = run;
    }
    to += p.final.outer_stride;
  }
}

template <int keys, class S>
struct Shared {
  typename Stages<keys, S>::Storage states[warps];
  kda_settle::Shared settle;
};

/// `span` columns of one head a warp. The grid has `per` blocks a position.
template <int keys, class S>
__global__ void __launch_bounds__(32 * warps, keys < 8 ? 3 : 2)
    kda_step_kernel(const __grid_constant__ KdaParams p,
                    const __grid_constant__ kda_settle::Input in, const int span, const int parts,
                    const int per) {
  auto& shared = *shared_memory<Shared<keys, S>>();
  const auto index = static_cast<std::int32_t>(block_index());
  const std::int32_t position = index / per;
  const int block = index % per;
  const int unit = block * warps + warp_index();
  const int head = min(unit / parts, p.heads - 1);
  const int first = unit % parts * span;
  // A warp without work keeps its block company until the sequence is settled.
  const int last = unit < p.heads * parts ? min(first + span, p.value_dim) : first;

  Stages<keys, S> stages(p, shared.states[warp_index()]);
  Token<keys> token;
  ColumnInputs inputs;
  kda_settle::Settled settled = kda_settle::glimpse(p, in, position);
  const KdaSequenceView& s = settled.s;
  const bool busy = first < last;
  if (busy && s.length > 0) {
    stages.fetch(s.state.initial, head, first, last);
    token.load(p, s, 0, head);
    inputs.load(p, s, 0, head, first);
  }
  if (kda_settle::settle(p, in, position, shared.settle, block == 0, settled) && busy &&
      s.length > 0) {
    token.load(p, s, 0, head);
    inputs.load(p, s, 0, head, first);
  }

  const int lane = lane_index();
  if (settled.gap.begin < settled.gap.end) {
    clear_rows(p, 0, settled.gap.begin, settled.gap.end, head, first, last, lane, 32);
  }
  if (settled.valid && s.length == 0) {
    pass_state<S>(p, s.state, head, first, last, lane, 32);
  }
  if (!settled.valid || s.length == 0 || s.state.skipped != 0 || !busy) {
    clear_rows(p, s.row, s.start, s.start + s.length, head, first, last, lane, 32);
    return stages.drop();
  }
  for (std::int32_t t = 0; t < s.length; ++t) {
    if (t > 0) {
      token.load(p, s, t, head);
      inputs.load(p, s, t, head, first);
    }
    token.evaluate(p, Gate<keys>(p, head));
    for (int column = first; column < last; column += columns) {
      const int stage = (column - first) / columns;
      StateTile<keys> state;
      if (t == 0) stages.take(stage, state);
      else stages.take_kept(stage, state);
      const ColumnInputs now = inputs;
      if (column + columns < last) inputs.load(p, s, t, head, column + columns);
      step<keys>(p, token, now, token_offset(p.out, s, t, head), column, state);
      std::int64_t row = t + 1 == s.length ? s.state.final : -1;
      if (p.columns.data != nullptr) {
        const std::int64_t slot = read_slot(p.columns, s.n, t);
        row = slot != p.null_slot ? slot : -1;
      }
      if (row >= 0) store_columns<keys, S>(p, row, head, column, state);
      if (t + 1 < s.length) stages.keep(stage, state);
    }
  }
}

/// Warps that keep a device busy, 12 on each of 132 multiprocessors, more than twice over. With
/// that many, a warp takes up to 32 columns; more gained nothing.
constexpr std::int64_t plenty = 4096;

template <int keys, class S>
void launch_sizes(const KdaParams& p, const kda_settle::Input& in, cudaStream_t stream) {
  const bool gaps = p.batch.sequences != nullptr || in.boundaries.data != nullptr;
  const std::int64_t positions = p.count + (gaps ? 1 : 0);
  if (positions * p.heads == 0) return;
  const auto parts_of = [&](int span) { return (p.value_dim + span - 1) / span; };
  int span = columns;
  while (span < Stages<keys, S>::depth * columns &&
         positions * p.heads * parts_of(2 * span) >= plenty)
    span *= 2;
  const int parts = parts_of(span);
  const int per = (p.heads * parts + warps - 1) / warps;
  launch("simt/kda_recurrent", kda_step_kernel<keys, S>, positions * per, 32 * warps,
         sizeof(Shared<keys, S>), stream, p, in, span, parts, per);
}

template <class S>
void launch_types(const KdaParams& p, const kda_settle::Input& in, cudaStream_t stream) {
  switch (kda_lane_keys(p.key_dim)) {
    case 2: return launch_sizes<2, S>(p, in, stream);
    case 4: return launch_sizes<4, S>(p, in, stream);
    default: return launch_sizes<8, S>(p, in, stream);
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
  p.initial.bf16 || p.final.bf16 ? launch_types<BFloat16>(p, in, stream)
                                 : launch_types<float>(p, in, stream);
}

}  // namespace packattn::cuda
