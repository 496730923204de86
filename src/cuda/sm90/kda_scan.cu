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
#include "cuda/kda_token.cuh"
#include "cuda/sm90/kda_chunk.h"
#include "cuda/sm90/ptx.cuh"

namespace packattn::cuda::sm90 {
namespace {

constexpr int tokens = KdaChunkShape::tokens;
constexpr int columns = KdaChunkShape::columns;
constexpr int stages = 2;

/// What a block works on. It lies in shared memory: beside a state there are no registers for it.
struct Work {
  KdaSequenceView s;
  int head;
  int column;                ///< first of the block's
  std::int32_t first, last;  ///< chunks of this wave
  std::int64_t slot;         ///< image of the first of them
  std::int64_t states;       ///< where the states before the sequence's chunks begin
};

/// The first of a warp's 16 columns of the state.
__device__ int warp_column(const Work& work) { return work.column + 16 * warp_index(); }

template <int groups>
struct Storage {
  KdaImage images[stages];
  std::byte values[2][4 * groups][tokens * 32];  ///< a warp's 16 columns of v, then of out
  std::uint64_t full[stages];
  std::uint64_t empty[stages];
  Work work;
};

/// Where a lane stands in a fragment: rows `row` and row + 8 are columns of the state, `pair` and
/// the next one channels or tokens in every eight.
__device__ int lane_row() { return lane_index() / 4; }
__device__ int lane_pair() { return 2 * (lane_index() % 4); }

__device__ std::uint32_t half_bits(float x, float y) {
  const __half2 pair = __floats2half2_rn(x, y);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
template <class T>
__device__ float2 widen_pair(std::uint32_t x) {
  if constexpr (std::is_same_v<T, __half>) return __half22float2(reinterpret_cast<__half2&>(x));
  else return __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(x));
}
template <class T>
__device__ std::uint32_t narrow_pair(float x, float y) {
  if constexpr (std::is_same_v<T, __half>) {
    return half_bits(x, y);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

// ---- the state ------------------------------------------------------------------------------

using State = float[64];  // [16 channel octets][2 rows][2 channels]

/// Calls f(offset in a head's state, register, next register) for pairs of channels that exist.
template <class F>
__device__ void for_each_pair(const KdaParams& p, const KdaPool& pool, int column, State& S,
                              F&& f) {
#pragma unroll
  for (int octet = 0; octet < 16; ++octet) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = 8 * octet + lane_pair();
      const int v = column + lane_row() + 8 * h;
      float* at = &S[4 * octet + 2 * h];
      if (k < p.key_dim && v < p.value_dim) f(state_offset(p, pool, k, v), at[0], at[1]);
    }
  }
}

template <class E>
__device__ void load_elements(const KdaParams& p, std::int64_t row, const Work& work, State& S) {
  const E* base = state_of<E>(p.initial, row, work.head);
  const std::int64_t next = p.v_first ? 1 : p.initial.outer_stride;
  for_each_pair(p, p.initial, warp_column(work), S, [&](std::int64_t at, float& x, float& y) {
    if constexpr (std::is_same_v<E, float>) {
      if (p.v_first && p.initial.vectors) {
        const float2 pair = *reinterpret_cast<const float2*>(base + at);
        x = pair.x;
        y = pair.y;
        return;
      }
    }
    x = widen(base[at]);
    y = widen(base[at + next]);
  });
}

template <class E>
__device__ void store_elements(const KdaParams& p, const KdaPool& pool, std::int64_t row,
                               const Work& work, float unscale, State& S) {
  E* base = state_of<E>(pool, row, work.head);
  const std::int64_t next = p.v_first ? 1 : pool.outer_stride;
  int column = warp_column(work);
  ptx::forget(column);  // 32 addresses kept in registers over the loop would not fit
  for_each_pair(p, pool, column, S, [&](std::int64_t at, float& x, float& y) {
    if constexpr (std::is_same_v<E, float>) {
      if (p.v_first && pool.vectors) {
        *reinterpret_cast<float2*>(base + at) = {x * unscale, y * unscale};
        return;
      }
    }
    base[at] = narrow<E>(x * unscale);
    base[at + next] = narrow<E>(y * unscale);
  });
}

__device__ void store_state(const KdaParams& p, const KdaPool& pool, std::int64_t row,
                            const Work& work, float unscale, State& S) {
  if (row < 0 || row >= pool.rows) return;
  if (pool.bf16) store_elements<BFloat16>(p, pool, row, work, unscale, S);
  else store_elements<float>(p, pool, row, work, unscale, S);
}

/// A thread's words of the state between two waves.
__device__ float4* carried(const KdaParams& p, const KdaWave& wave, const Work& work) {
  const int parts = (p.value_dim + columns - 1) / columns;
  const std::int64_t unit =
      (std::int64_t{work.s.n} * wave.heads + work.head - wave.first_head) * parts +
      warp_column(work) / columns;
  return reinterpret_cast<float4*>(wave.carry) + unit * 16 * 128 + thread_index() % 128;
}

__device__ void load_state(const KdaParams& p, const KdaWave& wave, const Work& work, State& S) {
#pragma unroll
  for (float& x : S) x = 0;
  if (work.first > 0) {
    const float4* from = carried(p, wave, work);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float4 x = from[i * 128];
      S[4 * i] = x.x, S[4 * i + 1] = x.y, S[4 * i + 2] = x.z, S[4 * i + 3] = x.w;
    }
    return;
  }
  const std::int64_t row = work.s.state.initial;
  if (row < 0) return;
  if (p.initial.bf16) load_elements<BFloat16>(p, row, work, S);
  else load_elements<float>(p, row, work, S);
}

__device__ void keep_state(const KdaParams& p, const KdaWave& wave, const Work& work, float unscale,
                           State& S) {
  if (work.last * tokens >= work.s.length) {
    store_state(p, p.final, work.s.state.final, work, unscale, S);
    return;
  }
  float4* to = carried(p, wave, work);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    to[i * 128] = {S[4 * i] * unscale, S[4 * i + 1] * unscale, S[4 * i + 2] * unscale,
                   S[4 * i + 3] * unscale};
  }
}

// ---- rows of v and out ----------------------------------------------------------------------

/// Word `word` (of two) of a token's 16 columns: eight tokens one below the other meet no conflict.
__device__ std::uint32_t value_address(const std::byte* values, int token, int word) {
  return ptx::shared_address(values) + token * 32 + ((word ^ (token >> 2 & 1)) << 4);
}

__device__ void load_values(const KdaParams& p, const Work& work, std::int32_t chunk,
                            const std::byte* values) {
  const std::int32_t first = chunk * tokens;
  const auto* data = static_cast<const std::uint16_t*>(p.v.data);
  const std::int64_t base = token_offset(p.v, work.s, first, work.head) + warp_column(work);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = lane_index() / 2 + 16 * i;
    const int word = lane_index() % 2;
    const bool valid = first + token < work.s.length && warp_column(work) + 8 * word < p.value_dim;
    ptx::copy_async_16(value_address(values, token, word),
                       data + (valid ? base + token * p.v.token_stride + 8 * word : 0), valid);
  }
  ptx::copy_async_commit();
}

/// Where lane's row of the four 8 x 8 matrices at tokens 16 i lies.
__device__ std::uint32_t matrix_address(const std::byte* values, int i) {
  const int lane = lane_index();
  return value_address(values, 16 * i + 8 * (lane / 16) + lane % 8, lane / 8 % 2);
}

template <class T>
__device__ void store_out(const KdaParams& p, const Work& work, std::int32_t chunk,
                          const float (&o)[32], const float* scale, float unscale,
                          std::byte* values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t r[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int octet = 2 * i + m / 2;
      const float2 by = *reinterpret_cast<const float2*>(scale + 8 * octet + lane_pair());
      const float* x = &o[4 * octet + 2 * (m % 2)];
      r[m] = narrow_pair<T>(x[0] * (by.x * unscale), x[1] * (by.y * unscale));
    }
    ptx::store_matrix_x4_transposed(matrix_address(values, i), r);
  }
  __syncwarp();
  const std::int32_t first = chunk * tokens;
  auto* data = static_cast<std::uint16_t*>(p.out.data);
  const std::int64_t base = token_offset(p.out, work.s, first, work.head) + warp_column(work);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = lane_index() / 2 + 16 * i;
    const int word = lane_index() % 2;
    if (first + token >= work.s.length || warp_column(work) + 8 * word >= p.value_dim) continue;
    *reinterpret_cast<uint4*>(data + base + token * p.out.token_stride + 8 * word) =
        ptx::load_shared_16(value_address(values, token, word));
  }
}

// ---- scales ---------------------------------------------------------------------------------

__device__ float power_of_two(int x) {
  return __uint_as_float(static_cast<unsigned>(x + 127) << 23);
}

/// The largest magnitude of a warp's values, as bits, and its exponent: below 2^exponent.
__device__ int exponent_of(float largest) {
  const unsigned bits = __reduce_max_sync(all_lanes, __float_as_uint(largest));
  return static_cast<int>(bits >> 23) - 126;
}

constexpr int lowest_exponent = -40;
constexpr int highest_exponent = 100;

/// Exponent by which a warp's columns are scaled in a chunk, so that fp16 holds them: from the
/// state before the chunk and the chunk's first token, both in the past of every row.
template <class T>
__device__ int scale_of(const State& S, int exponent, std::uint32_t first_low,
                        std::uint32_t first_high, float value_scale) {
  float largest = 0;
#pragma unroll
  for (float x : S) largest = fmaxf(largest, fabsf(x));
  largest *= power_of_two(exponent);
  if (lane_pair() == 0) {
    const float v = fmaxf(fabsf(widen_pair<T>(first_low).x), fabsf(widen_pair<T>(first_high).x));
    largest = fmaxf(largest, v * value_scale);
  }
  const int own = (exponent_of(largest) + 3) & ~3;
  return min(max(own, lowest_exponent), highest_exponent);
}

template <int count>
__device__ void multiply(float (&x)[count], float by) {
#pragma unroll
  for (float& each : x) each *= by;
}

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
