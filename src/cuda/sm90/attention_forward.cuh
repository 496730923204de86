// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/forward_fetch.cuh"

// sm90/attention_forward: softmax attention for fp16 and bf16 on Hopper, every option.
//
//   S = Q K^T    x = scale, softcap, ALiBi, mask of S    m' = max(m, max x)
//   P = exp(x - m')    l = e^(m - m') l + sum P    O = e^(m - m') O + P V    out = O / l
//
// An item is 128 packed rows: the query heads of a key head beside each other, token after token.
// Blocks stay, one a multiprocessor, and take items by a counter, the heaviest sequences first.
//
//   warp 0       fetches K(t+2), and Q of the next item, by the copy engine
//   warp 1       fetches V(t+3)
//   warp 2       looks up items, four ahead
//   groups 1, 2  64 rows each, in turns: while one's products run, the other makes weights
//
//   group 1   S(t+1) O+=P(t)V │ softmax(t+1)          │ S(t+2) O+=P(t+1)V │ ...
//   group 2   softmax(t)      │ S(t+1) O+=P(t)V       │ softmax(t+1)      │ ...
//
// Tiles run from the last that any row sees down to the first, and one item follows the other in
// the same stream: the first scores of the next are made beside the last O += P V of this one.
//
// Bits: key tiles start at key 0 and have one width for a pair of head sizes. A tile that a row
// does not see leaves m, l and O as they are, so that where a row lies in its item, and which
// rows lie beside it, changes nothing.

namespace packattn::cuda::sm90 {

/// S = Q K^T, started.
template <class C>
__device__ void start_scores(const ForwardStorage<C>& shared, int slot, int stage, int group,
                             Pieces<C::keys>& s) {
  static_assert(Pieces<C::keys>::count == 1);
  const std::uint64_t q =
      ptx::wgmma_uniform(ptx::wgmma_operand(shared.q[slot] + group * 64 * 64, 1024, 0));
  const std::uint64_t k = ptx::wgmma_uniform(ptx::wgmma_operand(shared.k[stage], 1024, 0));
#pragma unroll
  for (int kk = 0; kk < C::head / 16; ++kk) {
    const int column = kk % 4 * 32;
    ptx::wgmma<typename C::T, ptx::Major::depth>(
        s.at[0], ptx::wgmma_operand_at(q, kk / 4 * C::rows * 128 + column),
        ptx::wgmma_operand_at(k, kk / 4 * C::keys * 128 + column), kk > 0);
  }
}

/// O += P V, started.
template <class C>
__device__ void start_output(const ForwardStorage<C>& shared, int stage, const Weights<C>& p,
                             Pieces<C::value>& o) {
  constexpr int piece = Pieces<C::value>::piece;
  const std::uint64_t v =
      ptx::wgmma_uniform(ptx::wgmma_operand(shared.v[stage], 1024, C::keys * 128));
#pragma unroll
  for (int kk = 0; kk < C::keys / 16; ++kk) {
#pragma unroll
    for (int n = 0; n < C::value / piece; ++n) {
      const int at = (n * piece / 64 * C::keys + kk * 16) * 128;
      ptx::wgmma<typename C::T, ptx::Major::width>(o.at[n], p[kk], ptx::wgmma_operand_at(v, at),
                                                   true);
    }
  }
}

/// Rows of V past the sequence's end are somebody else's and may be NaN, which a weight of 0
/// would not silence. Only an item's first tile can have some.
template <class C>
__device__ void clear_ragged(const ForwardItem& item, int group, ForwardStorage<C>& shared,
                             Stage<C::value_stages> at) {
  const std::int32_t valid = item.k_length - (item.tile_end - 1) * C::keys;
  if (valid >= C::keys) return;
  ptx::barrier_wait(shared.v_full[at.index], at.phase);
  const int thread = static_cast<int>(threadIdx.x) % warpgroup;
  for (int b = 0; b < C::value / 64; ++b) {
    auto* rows = reinterpret_cast<uint4*>(shared.v[at.index] + b * C::keys * 64);
    for (int i = valid * 8 + thread; i < C::keys * 8; i += warpgroup) rows[i] = uint4{0, 0, 0, 0};
  }
  ptx::shared_proxy_fence();
  ptx::named_barrier_sync(group_0 + group, warpgroup);
}

/// The role of a warpgroup: one stream of key tiles, in which an item follows the other without a
/// pause. While O += P V of a tile runs, the scores of the tile after it become weights, be it the
/// next item's.
template <class C>
__device__ void consume(const AttentionParams& p, const ForwardLaunch& launch,
                        ForwardStorage<C>& shared, int group) {
  if (group == 1) ptx::named_barrier_arrive(turn_0, 2 * warpgroup);
  unsigned number = 0;
  const ForwardItem* item = &await_item(shared, number);
  if (item->rows == 0) return;
  const float factor = C::general ? log2e : p.scale * log2e;
  // What every tile asks for stays in registers: a read of shared memory is 30 cycles of waiting.
  RowState rows = row_state<C>(p, launch, *item, group);
  std::int32_t tile = item->tile_end - 1;
  std::int32_t left = tile - item->tile_begin;  // tiles of the item after this one
  Pieces<C::value> o;
  Pieces<C::keys> s;
  Weights<C> weights;
  float rescale[2];
  o.clear();
  ptx::barrier_wait(shared.q_full[0], 0);
  ptx::barrier_wait(shared.k_full[0], 0);
  s.pin();
  ptx::wgmma_fence();
  start_scores<C>(shared, 0, 0, group, s);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  s.pin();
  release(shared.k_empty[0]);
  if (left == 0) release(shared.q_empty[0]);
  finish_scores<C>(p, tile, rows, s);
  softmax_step<C>(factor, rows, s, rescale);
  round_weights<C>(s, weights);
  clear_ragged<C>(*item, group, shared, Stage<C::value_stages>(0));
  unsigned tiles = 0;  // whose weights are made
  for (;; ++tiles) {
    const Stage<C::value_stages> v(tiles);
    const Stage<C::key_stages> k(tiles + 1);
    const bool last = left == 0;
    const ForwardItem* following = item;
    --tile;
    --left;
    if (last) {
      following = &await_item(shared, ++number);
      if (following->rows == 0) break;
      tile = following->tile_end - 1;
      left = tile - following->tile_begin;
    }
    const Stage<C::queries> q(number);
    if (last) ptx::barrier_wait(shared.q_full[q.index], q.phase);
    ptx::barrier_wait(shared.k_full[k.index], k.phase);
    ptx::named_barrier_sync(turn_0 + group, 2 * warpgroup);
    s.pin();
    o.pin();
    ptx::wgmma_fence();
    start_scores<C>(shared, q.index, k.index, group, s);
    ptx::wgmma_commit();
    ptx::barrier_wait(shared.v_full[v.index], v.phase);
    ptx::wgmma_fence();
    start_output<C>(shared, v.index, weights, o);
    ptx::wgmma_commit();
    ptx::named_barrier_arrive(turn_0 + (1 - group), 2 * warpgroup);
    ptx::wgmma_wait<1>();
    s.pin();
    release(shared.k_empty[k.index]);
    if (left == 0) release(shared.q_empty[q.index]);
    const RowSums done = rows;
    if (last) rows = row_state<C>(p, launch, *following, group);
    finish_scores<C>(p, tile, rows, s);
    softmax_step<C>(factor, rows, s, rescale);
    s.pin();
    // The wait is in both branches: before them, the assembler moves it above the softmax.
    if (last) {
      ptx::wgmma_wait<0>();
      o.pin();
      release(shared.v_empty[v.index]);
      store_half<C, 0>(p, launch, *item, group, done, o);
      store_half<C, 1>(p, launch, *item, group, done, o);
      release(shared.item_empty[(number - 1) % C::item_slots]);
      o.clear();
      item = following;
      clear_ragged<C>(*item, group, shared, Stage<C::value_stages>(tiles + 1));
    } else {
      ptx::wgmma_wait<0>();
      o.pin();
      release(shared.v_empty[v.index]);
      rescale_output<C>(rescale, o);
    }
    round_weights<C>(s, weights);
  }
  const Stage<C::value_stages> v(tiles);
  ptx::barrier_wait(shared.v_full[v.index], v.phase);
  o.pin();
  ptx::wgmma_fence();
  start_output<C>(shared, v.index, weights, o);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  o.pin();
  store_half<C, 0>(p, launch, *item, group, rows, o);
  store_half<C, 1>(p, launch, *item, group, rows, o);
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    attention_forward_kernel(const __grid_constant__ AttentionParams p,
                             const __grid_constant__ ForwardLaunch launch) {
  extern __shared__ __align__(1024) std::byte bytes[];
  auto& shared = *reinterpret_cast<ForwardStorage<C>*>(bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::item_slots; ++i) {
      ptx::barrier_init(shared.item_full[i], 1);
      ptx::barrier_init(shared.item_empty[i], 4 * C::groups + 2);
    }
    for (int i = 0; i < C::queries; ++i) {
      ptx::barrier_init(shared.q_full[i], 1);
      ptx::barrier_init(shared.q_empty[i], 4 * C::groups);
    }
    for (int i = 0; i < C::key_stages; ++i) {
      ptx::barrier_init(shared.k_full[i], 1);
      ptx::barrier_init(shared.k_empty[i], 4 * C::groups);
    }
    for (int i = 0; i < C::value_stages; ++i) {
      ptx::barrier_init(shared.v_full[i], 1);
      ptx::barrier_init(shared.v_empty[i], 4 * C::groups);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  const int role = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / warpgroup, 0);
  if (role == 0) {
    ptx::registers_decrease<56>();
    const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) fetch_keys<C>(p, launch, shared);
    else if (warp == 1) fetch_values<C>(p, launch, shared);
    else if (warp == 2) schedule<C>(p, launch, shared);
    else clear_gaps(p);
  } else {
    ptx::registers_increase<224>();
    consume<C>(p, launch, shared, role - 1);
  }
}

template <class C>
void launch_config(const AttentionParams& p, const ForwardLaunch& launch, cudaStream_t stream) {
  constexpr auto bytes = static_cast<int>(sizeof(ForwardStorage<C>));
  static_assert(bytes <= shared_limit);
  check(cudaFuncSetAttribute(attention_forward_kernel<C>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
  attention_forward_kernel<C><<<launch.blocks, C::threads, bytes, stream>>>(p, launch);
  check(cudaGetLastError(), "sm90/attention_forward");
}

template <class T, bool general>
void launch_bucket(const AttentionParams& p, const ForwardLaunch& launch, ForwardBucket bucket,
                   cudaStream_t stream) {
  constexpr auto keys = forward_keys;
  switch (bucket) {
    using enum ForwardBucket;
    case d64: return launch_config<ForwardConfig<T, 64, 64, keys(d64), general>>(p, launch, stream);
    case d128:
      return launch_config<ForwardConfig<T, 128, 128, keys(d128), general>>(p, launch, stream);
    case d192_128:
      return launch_config<ForwardConfig<T, 192, 128, keys(d192_128), general>>(p, launch, stream);
    case d192:
      return launch_config<ForwardConfig<T, 192, 192, keys(d192), general>>(p, launch, stream);
    case d256:
      return launch_config<ForwardConfig<T, 256, 256, keys(d256), general>>(p, launch, stream);
  }
}

template <class T>
void launch_forward(const AttentionParams& p, const ForwardLaunch& launch, ForwardBucket bucket,
                    cudaStream_t stream) {
  p.plain ? launch_bucket<T, false>(p, launch, bucket, stream)
          : launch_bucket<T, true>(p, launch, bucket, stream);
}

}  // namespace packattn::cuda::sm90
