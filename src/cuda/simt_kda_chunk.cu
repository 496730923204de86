// SPDX-License-Identifier: Apache-2.0
// simt/kda_chunk: the chunked form of KDA in fp32 multiply-adds, every option, any card from
// compute capability 8.0.
//
// A block owns 64 columns (32 if K > 128) of one value head's state, which stays in shared memory
// from the first token to the last. Whatever the chunk size, the state moves on every 16 tokens, so
// the bits do not depend on it. With D_ij[d] = exp(g_{j+1} + .. + g_i), a product of factors of
// single tokens, all at most 1:
//
//   load      q, k, g, v, beta of 16 tokens; norms; factors exp(g)
//   relate    A_ij = beta_i k_i . (k_j D_ij),  B_ij = q_i . (k_j D_ij)     8 threads a column j
//   decay     k_i D_i0, q_i D_i0, k_j D_16j                                a thread a channel
//   read      R = beta (V - (K D) S),  O = (Q D) S                         2 columns x 4 rows a
//   thread solve     E_i = R_i - sum_{j<i} A_ij E_j,  O_i += sum_{j<=i} B_ij E_j  a thread a column
//   write     S = exp(g_1 + .. + g_16) S + (K D)^T E                       2 columns x K / 4 a
//   thread
//
// A row takes nothing from later rows, not even times zero.
#include "cuda/kda_token.cuh"

namespace packattn::cuda {
namespace {

constexpr int threads = 128;
constexpr int tokens = 16;  // of a step

/// Sizes of a block's work; `keys` is K rounded up to 4.
template <int column_count>
struct Shape {
  static constexpr int columns = column_count;
  static constexpr int pairs = columns / 2;
  static constexpr int groups = threads / pairs;  // threads of one column pair
  static constexpr int rows = tokens / groups;    // rows of one of them in `read`
  static constexpr int pitch = columns + 2;  // of a state row: lanes along K meet few conflicts
};

/// Shared memory of a block.
template <class C>
struct Storage {
  float* state;         ///< [keys][pitch]
  float *k, *q;         ///< [16][keys]; then with D_i0
  float* factor;        ///< [16][keys] g, exp(g); then k_j D_16j
  float *e, *o;         ///< [16][columns]; e is v, R, then E
  float *A, *B;         ///< [16][16]
  float *total, *keep;  ///< [keys] decay of the whole step, as Decay has it
  float* beta;          ///< [16]
  std::int64_t* sums;   ///< [warps]
  int keys;

  __host__ __device__ static std::size_t floats(int keys) {
    return static_cast<std::size_t>(keys * (C::pitch + 3 * tokens + 2) + 2 * tokens * C::columns +
                                    2 * tokens * tokens + tokens + 2 * threads / 32);
  }
  __device__ Storage(float* memory, int key_count) : keys(key_count) {
    const auto take = [&](int count) {
      float* at = memory;
      memory += count;
      return at;
    };
    k = take(tokens * keys);
    q = take(tokens * keys);
    factor = take(tokens * keys);
    A = take(tokens * tokens);
    B = take(tokens * tokens);
    beta = take(tokens);
    sums = reinterpret_cast<std::int64_t*>(take(2 * threads / 32));
    e = take(tokens * C::columns);
    o = take(tokens * C::columns);
    total = take(keys);
    keep = take(keys);
    state = take(keys * C::pitch);
  }
};

/// What a block works on: columns [column, column + columns) of a head, of which `valid` exist.
struct Part { int head, column, valid; };

// ---- the state ------------------------------------------------------------------------------

/// Calls f(element of the pool, element of shared memory) for the part's state.
template <class C, class T, class F>
__device__ void for_each_element(const KdaParams& p, const KdaPool& pool, std::int64_t row,
                                 const Part& part, const Storage<C>& w, F&& f) {
  T* base = state_of<T>(pool, row, part.head);
  for (int i = thread_index(); i < p.key_dim * part.valid; i += threads) {
    const int k = p.v_first ? i % p.key_dim : i / part.valid;
    const int c = p.v_first ? i / p.key_dim : i % part.valid;
    f(base[state_offset(p, pool, k, part.column + c)], w.state[k * C::pitch + c]);
  }
}

template <class C>
__device__ void load_state(const KdaParams& p, std::int64_t row, const Part& part,
                           const Storage<C>& w) {
  for (int i = thread_index(); i < w.keys * C::pitch; i += threads) w.state[i] = 0;
  __syncthreads();
  if (row < 0) return;
  const auto load = [](const auto& from, float& to) { to = widen(from); };
  if (p.initial.bf16) for_each_element<C, BFloat16>(p, p.initial, row, part, w, load);
  else for_each_element<C, float>(p, p.initial, row, part, w, load);
}

template <class C>
__device__ void store_state(const KdaParams& p, const KdaPool& pool, std::int64_t row,
                            const Part& part, const Storage<C>& w) {
  if (row < 0 || row >= pool.rows) return;
  const auto store = []<class T>(T& to, float from) { to = narrow<T>(from); };
  if (pool.bf16) for_each_element<C, BFloat16>(p, pool, row, part, w, store);
  else for_each_element<C, float>(p, pool, row, part, w, store);
}

// ---- one step of 16 tokens ------------------------------------------------------------------

/// Elements that a thread loads before it looks at the first of them.
constexpr int batch = 8;

/// Tokens first .. first + count; rows past them are 0 and change nothing.
template <class C>
__device__ void load_step(const KdaParams& p, const KdaSequenceView& s, std::int32_t first,
                          int count, const Part& part, const Storage<C>& w) {
  const float rate = gate_rate(p, part.head);
  const int key_head = part.head / p.group;
  const int total = tokens * w.keys;
  RawElements<1> beta{};
  if (thread_index() < count) {
    const std::int32_t t = first + thread_index();
    beta.load(
        p.beta.data, p.beta.dtype, [&](int) { return token_offset(p.beta, s, t, part.head); },
        [](int) { return true; });
  }
  for (int base = thread_index(); base < total; base += batch * threads) {
    const auto token = [&](int i) { return (base + i * threads) / w.keys; };
    const auto channel = [&](int i) { return (base + i * threads) % w.keys; };
    const auto valid = [&](int i) { return token(i) < count && channel(i) < p.key_dim; };
    const auto row = [&](const KdaTensor& x, int head, bool one) {
      return [&x, &s, &token, &channel, first, head, one](int i) {
        return token_offset(x, s, first + token(i), head) + (one ? 0 : channel(i));
      };
    };
    RawElements<batch> k, q, g;
    float bias[batch];
    k.load(p.k.data, p.k.dtype, row(p.k, key_head, false), valid);
    q.load(p.q.data, p.q.dtype, row(p.q, key_head, false), valid);
    g.load(p.g.data, p.g.dtype, row(p.g, part.head, p.gate_per_head), valid);
#pragma unroll
    for (int i = 0; i < batch; ++i) bias[i] = valid(i) ? gate_bias(p, part.head, channel(i)) : 0.0F;
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int at = base + i * threads;
      if (at >= total) continue;
      w.k[at] = k.decode(p.k.dtype, i);
      w.q[at] = q.decode(p.q.dtype, i);
      w.factor[at] = valid(i) ? log_decay(p, g.decode(p.g.dtype, i), bias[i], rate) : 0.0F;
    }
  }
  constexpr int values = tokens * C::columns / threads;
  RawElements<values> v;
  const auto token = [](int i) { return (thread_index() + i * threads) / C::columns; };
  const int c = thread_index() % C::columns;
  v.load(
      p.v.data, p.v.dtype,
      [&](int i) { return token_offset(p.v, s, first + token(i), part.head) + part.column + c; },
      [&](int i) { return token(i) < count && c < part.valid; });
#pragma unroll
  for (int i = 0; i < values; ++i) w.e[thread_index() + i * threads] = v.decode(p.v.dtype, i);
  if (thread_index() < tokens) {
    const bool valid = thread_index() < count;
    w.beta[thread_index()] = valid ? write_strength(p, beta.decode(p.beta.dtype, 0)) : 0.0F;
  }
}

/// Norms and scale, a warp a row; factors and the step's decay, a thread a channel.
template <class C>
__device__ void finish_load(const KdaParams& p, const Storage<C>& w) {
  for (int row = warp_index(); row < 2 * tokens; row += threads / 32) {
    const bool is_key = row < tokens;
    float* x = is_key ? w.k + row * w.keys : w.q + (row - tokens) * w.keys;
    if (is_key && !p.l2norm) continue;
    double squares = 0;
    for (int d = lane_index(); p.l2norm && d < w.keys; d += 32) {
      squares = fma(static_cast<double>(x[d]), static_cast<double>(x[d]), squares);
    }
    const float factor = norm_factor(p.l2norm, warp_sum(squares), is_key ? 1 : p.scale);
    for (int d = lane_index(); d < w.keys; d += 32) x[d] *= factor;
  }
  for (int d = thread_index(); d < w.keys; d += threads) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < tokens; ++i) {
      float& x = w.factor[i * w.keys + d];
      total += x;
      x = expf(x);
    }
    const Decay decay = Decay::of(total);
    w.total[d] = decay.factor;
    w.keep[d] = decay.keep ? 1.0F : 0.0F;
  }
}

__device__ float dot4(float4 a, float4 b, float sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}
__device__ float4 times4(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

/// A and B: eight threads a column j, each with every eighth group of four channels.
template <class C>
__device__ void relate(const Storage<C>& w) {
  constexpr int slices = threads / tokens;
  const int j = thread_index() / slices;
  const int slice = thread_index() % slices;
  const int lowest = warp_index() * 32 / slices;  // j of the warp's first thread
  float a[tokens] = {};
  float b[tokens] = {};
  for (int d = 4 * slice; d < w.keys; d += 4 * slices) {
    float4 kept = load4(w.k + j * w.keys + d);
#pragma unroll
    for (int i = 0; i < tokens; ++i) {
      if (i < lowest) continue;
      if (i > j) kept = times4(kept, load4(w.factor + i * w.keys + d));
      if (i > j) a[i] = dot4(kept, load4(w.k + i * w.keys + d), a[i]);
      if (i >= j) b[i] = dot4(kept, load4(w.q + i * w.keys + d), b[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < tokens; ++i) {
#pragma unroll
    for (int step = 1; step < slices; step *= 2) {
      a[i] += __shfl_xor_sync(all_lanes, a[i], step);
      b[i] += __shfl_xor_sync(all_lanes, b[i], step);
    }
    if (i % slices != slice) continue;
    w.A[i * tokens + j] = i > j ? w.beta[i] * a[i] : 0.0F;
    w.B[i * tokens + j] = i >= j ? b[i] : 0.0F;
  }
}

/// Keys and queries decayed from the start of the step, keys decayed to its end.
template <class C>
__device__ void apply_decay(const Storage<C>& w) {
  for (int d = thread_index(); d < w.keys; d += threads) {
    float factor[tokens];
    float key[tokens];
    float product = 1;
#pragma unroll
    for (int i = 0; i < tokens; ++i) {
      const int at = i * w.keys + d;
      factor[i] = w.factor[at];
      key[i] = w.k[at];
      product *= factor[i];
      w.k[at] = key[i] * product;
      w.q[at] *= product;
    }
    product = 1;
#pragma unroll
    for (int j = tokens - 1; j >= 0; --j) {
      w.factor[j * w.keys + d] = key[j] * product;
      product *= factor[j];
    }
  }
}

/// R over v, and the part of O that comes from the state.
template <class C>
__device__ void read_state(const Storage<C>& w) {
  const int c = 2 * (thread_index() % C::pairs);
  const int first = thread_index() / C::pairs * C::rows;
  float2 u[C::rows] = {};
  float2 o[C::rows] = {};
#pragma unroll 2
  for (int d = 0; d < w.keys; d += 4) {
    float2 s[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      s[n] = *reinterpret_cast<const float2*>(w.state + (d + n) * C::pitch + c);
    }
#pragma unroll
    for (int r = 0; r < C::rows; ++r) {
      const float4 k = load4(w.k + (first + r) * w.keys + d);
      const float4 q = load4(w.q + (first + r) * w.keys + d);
      u[r].x = dot4(k, make_float4(s[0].x, s[1].x, s[2].x, s[3].x), u[r].x);
      u[r].y = dot4(k, make_float4(s[0].y, s[1].y, s[2].y, s[3].y), u[r].y);
      o[r].x = dot4(q, make_float4(s[0].x, s[1].x, s[2].x, s[3].x), o[r].x);
      o[r].y = dot4(q, make_float4(s[0].y, s[1].y, s[2].y, s[3].y), o[r].y);
    }
  }
#pragma unroll
  for (int r = 0; r < C::rows; ++r) {
    const int at = (first + r) * C::columns + c;
    const float beta = w.beta[first + r];
    w.e[at] = beta * (w.e[at] - u[r].x);
    w.e[at + 1] = beta * (w.e[at + 1] - u[r].y);
    w.o[at] = o[r].x;
    w.o[at + 1] = o[r].y;
  }
}

/// E by forward substitution, and the rows of O.
template <class C>
__device__ void solve(const KdaParams& p, const KdaSequenceView& s, std::int32_t first, int count,
                      const Part& part, const Storage<C>& w) {
  const int c = thread_index();
  if (c >= C::columns) return;
  float e[tokens];
#pragma unroll
  for (int i = 0; i < tokens; ++i) {
    float x = w.e[i * C::columns + c];
    float o = w.o[i * C::columns + c];
#pragma unroll
    for (int j = 0; j < i; ++j) {
      x = fmaf(-w.A[i * tokens + j], e[j], x);
      o = fmaf(w.B[i * tokens + j], e[j], o);
    }
    e[i] = x;
    w.e[i * C::columns + c] = x;
    if (i < count && c < part.valid) {
      store_element(p.out, token_offset(p.out, s, first + i, part.head) + part.column + c,
                    fmaf(w.B[i * tokens + i], x, o));
    }
  }
}

/// S moves on.
template <class C>
__device__ void write_state(const Storage<C>& w) {
  const int c = 2 * (thread_index() % C::pairs);
  float2 e[tokens];
#pragma unroll
  for (int j = 0; j < tokens; ++j) {
    e[j] = *reinterpret_cast<const float2*>(w.e + j * C::columns + c);
  }
  for (int d = 4 * (thread_index() / C::pairs); d < w.keys; d += 4 * C::groups) {
    float2 s[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      s[n] = *reinterpret_cast<const float2*>(w.state + (d + n) * C::pitch + c);
      const Decay decay{w.total[d + n], w.keep[d + n] != 0};
      s[n].x = decay(s[n].x);
      s[n].y = decay(s[n].y);
    }
#pragma unroll
    for (int j = 0; j < tokens; ++j) {
      const float4 k = load4(w.factor + j * w.keys + d);
      s[0].x = fmaf(k.x, e[j].x, s[0].x), s[0].y = fmaf(k.x, e[j].y, s[0].y);
      s[1].x = fmaf(k.y, e[j].x, s[1].x), s[1].y = fmaf(k.y, e[j].y, s[1].y);
      s[2].x = fmaf(k.z, e[j].x, s[2].x), s[2].y = fmaf(k.z, e[j].y, s[2].y);
      s[3].x = fmaf(k.w, e[j].x, s[3].x), s[3].y = fmaf(k.w, e[j].y, s[3].y);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      *reinterpret_cast<float2*>(w.state + (d + n) * C::pitch + c) = s[n];
    }
  }
}

/// Chunks of the sequences before n.
template <class C>
__device__ std::int64_t chunks_before(const KdaParams& p, std::int32_t n, const Storage<C>& w) {
  std::int64_t chunks = 0;
  for (std::int32_t m = thread_index(); m < n; m += threads) {
    chunks += (kda_sequence(p, m).length + p.chunk_size - 1) / p.chunk_size;
  }
  chunks = warp_sum(chunks);
  if (lane_index() == 0) w.sums[warp_index()] = chunks;
  __syncthreads();
  chunks = 0;
  for (int warp = 0; warp < threads / 32; ++warp) chunks += w.sums[warp];
  return chunks;
}

/// All tokens of one sequence for the block's columns.
template <class C>
__device__ void run_sequence(const KdaParams& p, const KdaSequenceView& s, const Part& part,
                             const Storage<C>& w) {
  __syncthreads();  // the sequence before this one may still be in shared memory
  load_state(p, s.state.initial, part, w);
  const bool every = p.chunk_states.data != nullptr;
  std::int64_t chunk = every ? chunks_before(p, s.n, w) : 0;
  for (std::int32_t first = 0; first < s.length; first += tokens) {
    const int count = min(tokens, s.length - first);
    load_step(p, s, first, count, part, w);
    __syncthreads();
    if (every && first % p.chunk_size == 0) {
      store_state(p, p.chunk_states, chunk++, part, w);
    }
    finish_load(p, w);
    __syncthreads();
    relate(w);
    __syncthreads();
    apply_decay(w);
    __syncthreads();
    read_state(w);
    __syncthreads();
    solve(p, s, first, count, part, w);
    __syncthreads();
    write_state(w);
    __syncthreads();
  }
  store_state(p, p.final, s.state.final, part, w);
}

template <class C>
__global__ void __launch_bounds__(threads, 2)
    kda_chunk_kernel(const __grid_constant__ KdaParams p, const int parts) {
  const Storage<C> w(shared_memory<float>(), (p.key_dim + 3) / 4 * 4);
  const std::int64_t per_position = static_cast<std::int64_t>(p.heads) * parts;
  const std::int64_t units = kda_positions(p) * per_position;
  for (std::int64_t unit = block_index(); unit < units; unit += block_count()) {
    const auto within = static_cast<int>(unit % per_position);
    Part part{.head = within / parts, .column = within % parts * C::columns, .valid = 0};
    part.valid = min(C::columns, p.value_dim - part.column);
    KdaSequenceView s;
    const auto taken = [&]<class S>(S) {
      return take_sequence<S>(p, unit / per_position, part.head, part.column,
                              part.column + part.valid, thread_index(), threads, s);
    };
    if (p.initial.bf16 || p.final.bf16 ? taken(BFloat16{}) : taken(float{})) {
      run_sequence(p, s, part, w);
    }
  }
}

template <class C>
void launch_columns(const KdaParams& p, cudaStream_t stream) {
  const int parts = (p.value_dim + C::columns - 1) / C::columns;
  const std::int64_t units = kda_positions(p) * p.heads * parts;
  if (units == 0) return;
  const int keys = (p.key_dim + 3) / 4 * 4;
  launch("simt/kda_chunk", kda_chunk_kernel<C>, std::min<std::int64_t>(units, INT32_MAX), threads,
         Storage<C>::floats(keys) * sizeof(float), stream, p, parts);
}

}  // namespace

void launch_kda_chunk(const KdaParams& p, cudaStream_t stream) {
  p.key_dim > 128 ? launch_columns<Shape<32>>(p, stream) : launch_columns<Shape<64>>(p, stream);
}

}  // namespace packattn::cuda
