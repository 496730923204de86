// SPDX-License-Identifier: Apache-2.0
// sm90/kda_chunk, first part: what a chunk of 64 tokens has to say before any state is known, of
// all chunks and heads at once. docs/kernels/sm90-kda.md explains and measures it.
//
//   D_ij[d] = exp(g_{j+1} + .. + g_i), a product of single decays, all at most 1
//   A_ij = beta_i k_i . (k_j D_ij) for j < i, B_ij = q_i . (k_j D_ij) for j <= i
//   M = (I + A)^-1
//
// A and B are found level by level: in blocks of 2 L tokens, rows of the second half against
// columns of the first, D_ij = D_im D_mj with m the end of the first half. Both factors are at most
// 1 whatever the gates, m is in the past of every row, and going from L to 2 L is one product a
// token. L = 1, 2, 4, 8 within a warp, 16 and 32 between warps.
//
//   8 warps, each 16 tokens x 64 channels, a lane two channels; an image a block, two blocks at
//   work load q, k, g -> decays, norms | L = 1 2 4 8 | L = 16 32, rows of the image | invert 16 x
//   16 | M_10 = -M_11 A_10 M_00 twice, in tf32 parts | M beta in two parts, B to the image
//
// Reads 48 KB, writes 73 KB a chunk and head.
#include "cuda/sm90/kda_prepare_relations.cuh"
#include "cuda/sm90/kda_prepare_solve.cuh"

namespace packattn::cuda::sm90 {
namespace {

using namespace prepare;

// ---- a chunk --------------------------------------------------------------------------------

/// The block's image. Kept in two registers from the start to the end, its address would be two too
/// many.
__device__ KdaImage& image_of(const KdaWave& wave) {
  int block = static_cast<int>(block_index());
  ptx::forget(block);
  return wave.images[block];
}

template <class T>
__device__ void prepare_chunk(const KdaParams& p, const KdaWave& wave, const Chunk& chunk, int head,
                              Storage& w) {
  const Lane lane;
  __half2 k[group_tokens];
  Products d;
  {
    std::uint32_t raw_k[group_tokens];
    std::uint32_t raw_q[group_tokens];
    RawElements<1> beta{};
    if (thread_index() < chunk.count) {
      beta.load(
          p.beta.data, p.beta.dtype,
          [&](int) { return token_offset(p.beta, chunk.s, chunk.first + thread_index(), head); },
          [](int) { return true; });
    }
    load_gates(p, chunk, lane, head, d.from_start);
    load_pairs(p, p.k, chunk, lane, head / p.group, raw_k);
    load_pairs(p, p.q, chunk, lane, head / p.group, raw_q);
    const float2 sum = decays<T>(p, chunk, lane, head, d.from_start);
    *reinterpret_cast<float2*>(&w.gates[lane.group][lane.channel]) = sum;
    if (thread_index() < tokens) {
      const bool valid = thread_index() < chunk.count;
      w.beta[thread_index()] = valid ? write_strength(p, beta.decode(p.beta.dtype, 0)) : 0.0F;
    }
    sum_products<T>(lane, raw_k, raw_q, w);
    __syncthreads();
    find_factors(p, lane, image_of(wave), w);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < group_tokens; ++i) {
      const float2 key = widen_pair<T>(raw_k[i]);
      const float2 query = widen_pair<T>(raw_q[i]);
      const float* factor = w.factors[warp_index()];
      k[i] = half_pair(key.x * factor[i], key.y * factor[i]);
      w.q[warp_index()][i][lane_index()] =
          half_pair(query.x * factor[group_tokens + i], query.y * factor[group_tokens + i]);
      d.to_end[i] = {1, 1};
    }
  }
  if (thread_index() < 128) {
    const int c = thread_index();
    image_of(wave).decay[c] = expf(w.gates[0][c] + w.gates[1][c] + (w.gates[2][c] + w.gates[3][c]));
  }
  const Rows even{&w.u.own[warp_index()][0][0][0]};
  const Rows odd{&w.u.own[warp_index()][1][0][0]};
  const auto found = [&](int level) -> float4& {
    return w.partial[warp_index()][level][lane_index()];
  };
  relate_level<1>(even, k, w.q[warp_index()], d, found(0));
  double_blocks<1>(d);
  relate_level<2>(odd, k, w.q[warp_index()], d, found(1));
  double_blocks<2>(d);
  relate_level<4>(even, k, w.q[warp_index()], d, found(2));
  double_blocks<4>(d);
  relate_level<8>(odd, k, w.q[warp_index()], d, found(3));
  double_blocks<8>(d);
  *reinterpret_cast<float2*>(&w.totals[lane.group][lane.channel]) = d.from_start[group_tokens - 1];
  __syncthreads();  // beta, totals, partial sums; the operands have been read
  __half2 q[group_tokens];
#pragma unroll
  for (int i = 0; i < group_tokens; ++i) q[i] = w.q[warp_index()][i][lane_index()];
  spread(lane, k, q, d, image_of(wave), w);
  __syncthreads();
  if (lane.half == 0) {
    store_level<1>(w, lane, 0);
    store_level<2>(w, lane, 1);
  } else {
    store_level<4>(w, lane, 2);
    store_level<8>(w, lane, 3);
  }
  relate_groups(w);
  __syncthreads();
  if (warp_index() < 4) {
    invert_block(w, warp_index());
  } else {
    const int row = thread_index() % 64;
    const int first = (thread_index() - 128) / 64 * 32;
#pragma unroll
    for (int x = 0; x < 32; x += 8) {
      Eight(w.B, row, first + x).put(image_of(wave).read, row, first + x);
    }
  }
  __syncthreads();
  merge_blocks(w);
  __syncthreads();
  const int row = thread_index() / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = 8 * (thread_index() % 4 + 4 * half);
    Eight x(w.u.solve.M, row, first);
#pragma unroll
    for (int n = 0; n < 8; ++n) x.x[n] *= w.beta[first + n];
    x.put(image_of(wave).solve, row, first);
    x.put(image_of(wave).solve_rest, row, first);
  }
}

/// The sequence whose images include number `slot`.
__device__ std::int32_t sequence_of(const KdaWave& wave, std::int32_t count, std::int32_t slot) {
  std::int32_t low = 0;
  std::int32_t high = count;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (wave.bases[middle] <= slot) low = middle;
    else high = middle;
  }
  return low;
}

template <class T>
__global__ void __launch_bounds__(threads, 2)
    kda_prepare_kernel(const __grid_constant__ KdaParams p, const __grid_constant__ KdaWave wave) {
  auto& w = *shared_memory<Storage>();
  const auto slot = static_cast<std::int32_t>(block_index() / wave.heads);
  const auto place = static_cast<int>(block_index() % wave.heads);
  if (slot >= wave.bases[p.count]) return;
  const std::int32_t n = sequence_of(wave, p.count, slot);
  Chunk chunk{kda_sequence(p, n), (wave.first + slot - wave.bases[n]) * tokens, 0};
  chunk.count = min(tokens, chunk.s.length - chunk.first);
  if (chunk.s.state.skipped != 0) return;
  prepare_chunk<T>(p, wave, chunk, wave.first_head + place, w);
}

/// Chunks of the wave: exclusive sums over the sequences, in one block.
__global__ void __launch_bounds__(256, 1)
    kda_wave_kernel(const __grid_constant__ KdaParams p, const __grid_constant__ KdaWave wave) {
  __shared__ std::int32_t warp_sums[8];
  __shared__ std::int32_t before;
  if (thread_index() == 0) before = 0;
  for (std::int32_t base = 0; base <= p.count; base += 256) {
    const std::int32_t n = base + thread_index();
    std::int32_t own = 0;
    if (n < p.count) {
      const std::int32_t chunks = (kda_sequence(p, n).length + tokens - 1) / tokens;
      own = min(max(chunks - wave.first, 0), wave.count);
    }
    std::int32_t sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t other = __shfl_up_sync(all_lanes, sum, step);
      if (lane_index() >= step) sum += other;
    }
    if (lane_index() == 31) warp_sums[warp_index()] = sum;
    __syncthreads();
    std::int32_t start = before;
    for (int warp = 0; warp < warp_index(); ++warp) start += warp_sums[warp];
    if (n <= p.count) wave.bases[n] = start + sum - own;
    __syncthreads();
    if (thread_index() == 255) before = start + sum;
    __syncthreads();
  }
}

}  // namespace

void launch_kda_wave(const KdaParams& p, const KdaWave& wave, cudaStream_t stream) {
  launch("sm90/kda_chunk: wave", kda_wave_kernel, 1, 256, 0, stream, p, wave);
}

void launch_kda_prepare(const KdaParams& p, const KdaWave& wave, cudaStream_t stream) {
  const std::int64_t blocks = wave.bound * wave.heads;
  if (blocks == 0) return;
  const auto start = [&](auto kernel) {
    launch("sm90/kda_chunk: prepare", kernel, blocks, threads, sizeof(Storage), stream, p, wave);
  };
  if (p.q.dtype == DType::bf16) start(kda_prepare_kernel<__nv_bfloat16>);
  else start(kda_prepare_kernel<__half>);
}

}  // namespace packattn::cuda::sm90
