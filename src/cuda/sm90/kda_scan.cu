// SPDX-License-Identifier: Apache-2.0
// sm90/kda_chunk, second part: the state from chunk to chunk. A warpgroup holds 64 columns of a
// head's state, transposed, in registers, in fp32; with fp16 copies of it as left operands no
// product waits for shared memory. docs/kernels/sm90-kda.md explains and measures it.
//
//   R = V - (K D_i0) S      E = (M beta) R      O = (Q D_i0) S + B E
//   S = exp(g_1 + .. + g_64) S + (K D_64j)^T E
//
//   copying thread   | image c+1 ............................ | image c+2 ...
//   each warpgroup   | S -> fp16 | R | E | O ... out           |
//                    |           |   |   | S'                  |
//
// fp16 has five bits of exponent: a warp's 16 columns are kept scaled by a power of two, found from
// the state and the first token of each chunk. Rows of v that are 256 times larger raise it.
#include "cuda/sm90/kda_scan_state.cuh"

namespace packattn::cuda::sm90 {
namespace {

using namespace scan;

// ---- a chunk --------------------------------------------------------------------------------

template <int blocks>
__device__ void pack(const float (&x)[8 * blocks], std::uint32_t (&a)[blocks][4]) {
#pragma unroll
  for (int b = 0; b < blocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[b][i] = half_bits(x[8 * b + 2 * i], x[8 * b + 2 * i + 1]);
  }
}

/// What rounding x to fp16 took from it, rounded in turn.
template <int blocks>
__device__ void pack_rest(const float (&x)[8 * blocks], const std::uint32_t (&a)[blocks][4],
                          std::uint32_t (&rest)[blocks][4]) {
#pragma unroll
  for (int b = 0; b < blocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 rounded = widen_pair<__half>(a[b][i]);
      rest[b][i] = half_bits(x[8 * b + 2 * i] - rounded.x, x[8 * b + 2 * i + 1] - rounded.y);
    }
  }
}

/// d (+)= a times the transpose of rows of `depth` channels or tokens.
template <int steps>
__device__ void multiply_rows(float (&d)[32], const std::uint32_t (&a)[steps][4], const void* rows,
                              bool accumulate) {
  const std::uint64_t b = ptx::wgmma_operand(rows, 1024, 0);
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    ptx::wgmma<__half, ptx::Major::depth>(
        d, a[s], ptx::wgmma_operand_at(b, s / 4 * 8192 + s % 4 * 32), accumulate || s > 0);
  }
}

/// S += a times 64 rows of 128 channels.
__device__ void multiply_columns(State& S, const std::uint32_t (&a)[4][4], const void* rows) {
  const std::uint64_t b = ptx::wgmma_operand(rows, 1024, 8192);
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    ptx::wgmma<__half, ptx::Major::width>(S, a[s], ptx::wgmma_operand_at(b, s * 2048), true);
  }
}

template <class T>
__device__ void run_chunk(const KdaParams& p, const Work& work, std::int32_t chunk, bool scaled_v,
                          const KdaImage& image, std::uint64_t& full, int parity, std::byte* values,
                          std::byte* next_values, int& exponent, State& S) {
  ptx::copy_async_wait<0>();
  __syncwarp();
  if (chunk + 1 < work.last) load_values(p, work, chunk + 1, next_values);
  std::uint32_t v[4];
  ptx::load_matrix_x4_transposed(v, matrix_address(values, 0));
  ptx::barrier_wait(full, parity);
  const int wanted = scale_of<T>(S, exponent, v[0], v[1], scaled_v ? image.value_scale[0] : 1.0F);
  if (wanted != exponent) {
    multiply(S, power_of_two(exponent - wanted));
    exponent = wanted;
  }
  float r[32];
  float o[32];
  std::uint32_t state[8][4];
  pack(S, state);
  ptx::wgmma_fence();
  multiply_rows(r, state, image.k_start, false);
  ptx::wgmma_commit();
  multiply_rows(o, state, image.q_start, false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();
  ptx::wgmma_pin(r);
  const float down = power_of_two(-exponent);
  float largest = 0;
#pragma unroll
  for (int octet = 0; octet < 8; ++octet) {
    if (octet % 2 == 0) ptx::load_matrix_x4_transposed(v, matrix_address(values, octet / 2));
    float2 by{down, down};
    if (scaled_v) {
      const float2 own =
          *reinterpret_cast<const float2*>(&image.value_scale[8 * octet + lane_pair()]);
      by = {own.x * down, own.y * down};
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 pair = widen_pair<T>(v[octet % 2 * 2 + h]);
      float* at = &r[4 * octet + 2 * h];
      at[0] = fmaf(pair.x, by.x, -at[0]);
      at[1] = fmaf(pair.y, by.y, -at[1]);
      largest = fmaxf(largest, fmaxf(fabsf(at[0]), fabsf(at[1])));
    }
  }
  const int excess = exponent_of(largest) - 8;
  if (excess > 0) {
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(o);
    const int more = min(excess, highest_exponent);
    const float by = power_of_two(-more);
    multiply(r, by);
    multiply(o, by);
    multiply(S, by);
    exponent += more;
  }
  std::uint32_t e[4][4];
  pack(r, e);
  ptx::wgmma_fence();
  multiply_rows(r, e, image.solve, false);
  multiply_rows(r, e, image.solve_rest, true);
  ptx::wgmma_commit();
#pragma unroll
  for (int octet = 0; octet < 16; ++octet) {
    const float2 by = *reinterpret_cast<const float2*>(&image.decay[8 * octet + lane_pair()]);
    S[4 * octet] *= by.x, S[4 * octet + 1] *= by.y;
    S[4 * octet + 2] *= by.x, S[4 * octet + 3] *= by.y;
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(r);
  ptx::wgmma_pin(o);
  // Tokens may undo each other; of 64 of them the roundings to one fp16 would add up.
  std::uint32_t rest[4][4];
  pack(r, e);
  pack_rest(r, e, rest);
  ptx::wgmma_fence();
  multiply_rows(o, e, image.read, true);
  multiply_rows(o, rest, image.read, true);
  ptx::wgmma_commit();
  multiply_columns(S, e, image.k_end);
  multiply_columns(S, rest, image.k_end);
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();
  ptx::wgmma_pin(o);
  store_out<T>(p, work, chunk, o, image.out_scale, power_of_two(exponent), values);
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(S);
}

/// Chunks of the sequences before n, for the states before each.
__device__ std::int64_t chunks_before(const KdaParams& p, std::int32_t n) {
  std::int64_t chunks = 0;
  for (std::int32_t m = lane_index(); m < n; m += 32) {
    chunks += (kda_sequence(p, m).length + tokens - 1) / tokens;
  }
  return warp_sum(chunks);
}

template <class T, int groups>
__device__ void consume(const KdaParams& p, const KdaWave& wave, const Work& work,
                        Storage<groups>& w) {
  State S;
  load_values(p, work, work.first, w.values[0][warp_index()]);
  load_state(p, wave, work, S);
  int exponent = 0;
  for (std::int32_t chunk = work.first; chunk < work.last; ++chunk) {
    const int turn = chunk - work.first;
    const int stage = turn % stages;
    if (p.chunk_states.data != nullptr) {
      store_state(p, p.chunk_states, work.states + chunk, work, power_of_two(exponent), S);
    }
    run_chunk<T>(p, work, chunk, !p.l2norm, w.images[stage], w.full[stage], turn / stages % 2,
                 w.values[turn % 2][warp_index()], w.values[(turn + 1) % 2][warp_index()], exponent,
                 S);
    if (lane_index() == 0) ptx::barrier_arrive(w.empty[stage]);
  }
  keep_state(p, wave, work, power_of_two(exponent), S);
}

template <int groups>
__device__ void produce(const KdaParams& p, const KdaWave& wave, const Work& work,
                        Storage<groups>& w) {
  for (std::int32_t chunk = work.first; chunk < work.last; ++chunk) {
    const int turn = chunk - work.first;
    const int stage = turn % stages;
    if (turn >= stages) ptx::barrier_wait(w.empty[stage], (turn / stages + 1) % 2);
    ptx::barrier_arrive_expect(w.full[stage], sizeof(KdaImage));
    const KdaImage& image =
        wave.images[(work.slot + turn) * wave.heads + work.head - wave.first_head];
    ptx::copy_bulk(&w.images[stage], &image, sizeof(KdaImage), w.full[stage]);
  }
}

/// The block's work, if there is any; all threads find the same. Once a block, and not inlined:
/// what it reads would push a register of the loop to memory.
template <int groups>
__device__ __noinline__ bool take_work(const KdaParams& p, const KdaWave& wave, int parts,
                                       int threads, Work& shared) {
  const std::int64_t per_position = std::int64_t{parts} * wave.heads;
  const auto within = static_cast<int>(block_index() % per_position);
  Work work{};
  work.head = wave.first_head + within / parts;
  work.column = within % parts * groups * columns;
  const auto taken = [&]<class E>(E) {
    return take_sequence<E>(p, block_index() / per_position, work.head, work.column,
                            min(work.column + groups * columns, p.value_dim), thread_index(),
                            threads, work.s);
  };
  if (!(p.initial.bf16 || p.final.bf16 ? taken(BFloat16{}) : taken(float{}))) return false;
  work.first = wave.first;
  work.last = min((work.s.length + tokens - 1) / tokens, wave.first + wave.count);
  if (work.first >= work.last) return false;
  work.slot = wave.bases[work.s.n];
  if (warp_index() == 0) {
    if (p.chunk_states.data != nullptr) work.states = chunks_before(p, work.s.n);
    if (lane_index() == 0) shared = work;
  }
  return true;
}

template <class T, int groups>
__global__ void __launch_bounds__(128 * (groups + 1), 1)
    kda_scan_kernel(const __grid_constant__ KdaParams p, const __grid_constant__ KdaWave wave,
                    const int parts) {
  constexpr int threads = 128 * (groups + 1);
  auto* memory = shared_memory<std::byte>();
  // A sum, not a cast from an integer: the compiler has to see that this is shared memory.
  auto& w = *reinterpret_cast<Storage<groups>*>(memory +
                                                (1024 - ptx::shared_address(memory) % 1024) % 1024);
  if (!take_work<groups>(p, wave, parts, threads, w.work)) return;
  if (thread_index() == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::barrier_init(w.full[stage], 1);
      ptx::barrier_init(w.empty[stage], 4 * groups);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (warp_index() < 4 * groups) {
    if constexpr (groups == 2) ptx::registers_increase<240>();
    consume<T, groups>(p, wave, w.work, w);
  } else {
    if constexpr (groups == 2) ptx::registers_decrease<24>();
    if (thread_index() == 128 * groups) produce<groups>(p, wave, w.work, w);
  }
}

template <class T, int groups>
void start(const KdaParams& p, const KdaWave& wave, cudaStream_t stream) {
  const int parts = (p.value_dim + groups * columns - 1) / (groups * columns);
  const std::int64_t blocks = kda_positions(p) * wave.heads * parts;
  if (blocks == 0) return;
  launch("sm90/kda_chunk: scan", kda_scan_kernel<T, groups>, blocks, 128 * (groups + 1),
         sizeof(Storage<groups>) + 1024, stream, p, wave, parts);
}

}  // namespace

void launch_kda_scan(const KdaParams& p, const KdaWave& wave, int groups, cudaStream_t stream) {
  const bool bf16 = p.q.dtype == DType::bf16;
  if (groups == 2) {
    bf16 ? start<__nv_bfloat16, 2>(p, wave, stream) : start<__half, 2>(p, wave, stream);
  } else {
    bf16 ? start<__nv_bfloat16, 1>(p, wave, stream) : start<__half, 1>(p, wave, stream);
  }
}

}  // namespace packattn::cuda::sm90
