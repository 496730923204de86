// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/attention_rows.cuh"

// Shared memory of the 16-bit simt kernel, and how queries and keys get there.

namespace packattn::cuda {

/// Head sizes padded to what is compiled. A warp owns 16 packed rows; decode takes blocks of one
/// warp, so that none idles and many loads are under way. `keys` a tile and `stages` of them fill
/// shared memory for `blocks` a multiprocessor (100 KB at most, so that every card from 8.6 runs
/// it; 256 takes 160 KB).
template <class Element, int d, int dv, int keys_per_tile, int stage_count, int warp_count,
          int blocks_per_processor>
struct Config {
  using T = Element;
  static constexpr int head = d;
  static constexpr int value = dv;
  static constexpr int keys = keys_per_tile;
  static constexpr int stages = stage_count;
  static constexpr int rows = 16 * warp_count;
  static constexpr int threads = 32 * warp_count;
  static constexpr bool boxes = false;
  static constexpr int blocks = blocks_per_processor;
};

template <class C>
struct Storage {
  alignas(128) typename C::T q[C::rows * C::head];
  alignas(128) typename C::T k[C::stages][C::keys * C::head];
  alignas(128) typename C::T v[C::stages][C::keys * C::value];
};

/// Copies one 16-byte chunk; rows that are not aligned go element by element.
template <class T>
__device__ void load_chunk(std::uint32_t to, const T* from, bool valid, bool aligned) {
  if (aligned) {
    ptx::copy_async_16(to, from, valid);
    return;
  }
  auto* target = static_cast<T*>(__cvta_shared_to_generic(to));
  for (int i = 0; i < 8; ++i) target[i] = valid ? from[i] : T(0.0F);
}

template <class C>
__device__ void load_q(const AttentionParams& p, const Item& item, typename C::T* to) {
  using T = typename C::T;
  const auto* q = static_cast<const T*>(p.q.data);
  constexpr int chunks = C::head / 8;
  for (int i = static_cast<int>(threadIdx.x); i < C::rows * chunks; i += C::threads) {
    const int row = i / chunks;
    const int chunk = i % chunks;
    const bool valid = row < item.rows && chunk * 8 < p.head_dim;
    const std::int64_t token = item.sequence.q_start + item.first_row + row / item.heads;
    const int head = item.head_k * p.group + item.first_head + row % item.heads;
    const T* from = valid ? q + token * p.q.row_stride + head * p.q.head_stride + chunk * 8 : q;
    load_chunk(swizzled<C::head>(to, row, chunk), from, valid, p.aligned);
  }
}

/// Rows found chunk by chunk: unaligned ones, or rows whose chunks do not divide the threads.
template <class C, int width>
__device__ void gather_keys(const AttentionParams& p, const Item& item, const KeyRows& rows,
                            int dim, std::int32_t first, typename C::T* to) {
  using T = typename C::T;
  constexpr unsigned chunks = width / 8;
  for (unsigned i = threadIdx.x; i < C::keys * chunks; i += C::threads) {
    const auto row = static_cast<int>(i / chunks);
    const auto chunk = static_cast<int>(i % chunks);
    const std::int32_t key = first + row;
    const bool valid = key < item.key_end && chunk * 8 < dim;
    const T* from =
        valid ? key_row<T>(p, item, rows, key) + chunk * 8 : static_cast<const T*>(rows.data);
    load_chunk(swizzled<width>(to, row, chunk), from, valid, p.aligned);
  }
}

/// A thread keeps its chunk and goes down the rows. Packed rows are one addition apart; the rows of
/// pages are looked up once each, by one lane, and handed to the lanes that copy their chunks.
template <class C, int width>
__device__ void load_keys(const AttentionParams& p, const Item& item, const KeyRows& rows, int dim,
                          std::int32_t first, typename C::T* to) {
  constexpr int chunks = width / 8;
  if (C::threads % chunks != 0 || !p.aligned) {
    gather_keys<C, width>(p, item, rows, dim, first, to);
    return;
  }
  using T = typename C::T;
  constexpr int step = C::threads / chunks > 0 ? C::threads / chunks : 1;  // rows of a pass
  constexpr int of_warp = 32 / chunks > 0 ? 32 / chunks : 1;               // of those, a warp's
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto row = static_cast<int>(threadIdx.x) / chunks;
  const auto chunk = static_cast<int>(threadIdx.x) % chunks;
  // Beyond the end nothing is read: the copy's size is 0.
  const int end = chunk * 8 < dim ? item.key_end - first : 0;
  if (p.batch.block_table == nullptr) {
    const T* from = static_cast<const T*>(rows.data) + item.head_k * rows.head_stride +
                    (item.sequence.k_start + first + row) * rows.row_stride + chunk * 8;
#pragma unroll(width > 192 ? 2 : 8)
    for (int r = 0; r < C::keys; r += step) {
      ptx::copy_async_16(swizzled<width>(to, row + r, chunk), from, row + r < end);
      from += step * rows.row_stride;
    }
    return;
  }
  constexpr int held = step * (32 / of_warp);  // rows whose addresses a warp's lanes can hold
  for (int batch = 0; batch < C::keys; batch += held) {
    const int own = first + batch + row - lane / chunks + lane % of_warp + step * (lane / of_warp);
    const auto found = reinterpret_cast<unsigned long long>(
        own < item.key_end ? key_row<T>(p, item, rows, own) : static_cast<const T*>(rows.data));
#pragma unroll(width > 192 ? 2 : 8)
    for (int r = batch; r < batch + held && r < C::keys; r += step) {
      const auto from = reinterpret_cast<const T*>(
          __shfl_sync(0xffffffffU, found, (r - batch) / step * of_warp + lane / chunks));
      ptx::copy_async_16(swizzled<width>(to, row + r, chunk), from + chunk * 8, row + r < end);
    }
  }
}

/// Keys [first, first + keys) into a stage, or nothing from `end` on; a group either way, so that
/// waiting for a tile is waiting for all but the newest groups.
template <class C>
__device__ void load_tile(const AttentionParams& p, const Item& item, std::int32_t first, int stage,
                          std::int32_t end, Storage<C>& shared) {
  if (first < end) {
    load_keys<C, C::head>(p, item, p.k, p.head_dim, first, shared.k[stage]);
    load_keys<C, C::value>(p, item, p.v, p.value_dim, first, shared.v[stage]);
  }
  ptx::copy_async_commit();
}

}  // namespace packattn::cuda
