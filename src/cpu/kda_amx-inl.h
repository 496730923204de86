// SPDX-License-Identifier: Apache-2.0
// The chunked form of KDA with its products with the state on AMX tiles; docs/kernels/amx.md
// explains it. A step is that of kda_chunk.cpp, 16 tokens, for whose tokens the same code stands
// (kda_step-inl.h). `Tiles` are the processor's, or emulated ones. One copy per Highway target, of
// which only AVX-512 has one.
//
//   split    S = S_high + S_low in bf16, then S = exp(g_1 + .. + g_C) S       vectors
//   read     U = (K D) S, O = (Q D) S          high high + high low + low high
//   solve    E, O                                                             vectors
//   write    S += (kept K)^T E                 [high low] [E_high E_high], and E_low
//
// The state itself stays fp32. Cut off after 8 + 8 bits, an operand has a relative error below
// 2^-14, where bf16 alone would cost 2.9e-3 in the output.
#include <algorithm>
#include <cstdint>

#include <hwy/highway.h>
#include <immintrin.h>

#include "cpu/amx_tiles.h"
#include "cpu/kda_amx.h"
#include "cpu/kda_step-inl.h"
#include "cpu/transpose_512.h"

#if defined(PACKATTN_CPU_KDA_AMX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PACKATTN_CPU_KDA_AMX_INL_H
#undef PACKATTN_CPU_KDA_AMX_INL_H
#else
#define PACKATTN_CPU_KDA_AMX_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

static_assert(step_tokens == tile_rows && block == 32 && lanes == 16);
constexpr std::int64_t tile_columns = 16;

/// A worker's scratch memory.
struct AmxMemory {
  AmxMemory(const KdaProblem& p, std::int64_t columns, std::byte* memory)
      : w(p, columns, reinterpret_cast<float*>(memory)), steps((w.K + 31) / 32) {
    std::int64_t used = round_up_bytes(w.floats * std::int64_t{sizeof(float)});
    const auto take = [&](std::int64_t tiles) {
      std::byte* at = memory != nullptr ? memory + used : nullptr;
      used += tiles * tile_bytes;
      return at;
    };
    high = take(w.C / tile_columns * steps);
    low = take(w.C / tile_columns * steps);
    rows = take(4 * steps);
    kept = take(w.K / 16);
    e = take(4);
    u = reinterpret_cast<float*>(take(2));
    o = reinterpret_cast<float*>(take(2));
    bytes = static_cast<std::size_t>(used);
  }
  static std::int64_t round_up_bytes(std::int64_t n) { return (n + 63) / 64 * 64; }
  float* state(std::int64_t column) const { return w.state + column * w.K; }

  Scratch w;              ///< its state is [C / 16][K][16]
  std::int64_t steps;     ///< of 32 key channels
  std::byte *high, *low;  ///< S: [C / 16][step][16 pairs of channels][16 columns]
  std::byte* rows;        ///< [step][K D high, Q D high, K D low, Q D low][16 tokens][32 channels]
  std::byte* kept;        ///< [K / 16][16 channels][16 tokens high, 16 tokens low]
  std::byte* e;           ///< [2 tiles of columns][high twice, low twice][16 tokens][16 columns]
  float *u, *o;           ///< [16][32]
  std::size_t bytes;
};

inline __m512i cut(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-65536));
}
inline __m512 rest(__m512 x) { return _mm512_sub_ps(x, _mm512_castsi512_ps(cut(x))); }

/// The upper halves of a and b: in turn, a first, or one after the other.
inline __m512i upper_in_turn(__m512 a, __m512 b) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), cut(b));
}
inline __m512i upper_in_order(__m512 a, __m512 b) {
  const __m512i odd =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(_mm512_castps_si512(a), odd, _mm512_castps_si512(b));
}

/// K D and Q D of a step as tiles; missing tokens and channels are zeros.
inline void pack_rows(const AmxMemory& m, std::int64_t count) {
  const std::int64_t K = m.w.K;
  for (std::int64_t s = 0; s < m.steps; ++s) {
    for (int which = 0; which < 2; ++which) {
      const float* from = (which == 0 ? m.w.keys_from_start() : m.w.queries_from_start()) + 32 * s;
      std::byte* to = m.rows + (4 * s + which) * tile_bytes;
      for (std::int64_t i = 0; i < tile_rows; ++i, from += K, to += 64) {
        const bool there = i < count, both = there && 32 * s + 16 < K;
        const __m512 a = there ? _mm512_loadu_ps(from) : _mm512_setzero_ps();
        const __m512 b = both ? _mm512_loadu_ps(from + 16) : _mm512_setzero_ps();
        _mm512_storeu_si512(to, upper_in_order(a, b));
        _mm512_storeu_si512(to + 2 * tile_bytes, upper_in_order(rest(a), rest(b)));
      }
    }
  }
}

/// The kept keys turned round.
inline void pack_kept(const AmxMemory& m, std::int64_t count) {
  for (std::int64_t d = 0; d < m.w.K; d += 16) {
    __m512i turned[16];
    for (std::int64_t j = 0; j < 16; ++j) {
      turned[j] = j < count ? _mm512_loadu_si512(m.w.kept + j * m.w.K + d) : _mm512_setzero_si512();
    }
    transpose(turned);
    std::byte* to = m.kept + d / 16 * tile_bytes;
    for (int i = 0; i < 16; ++i) {
      const __m512 x = _mm512_castsi512_ps(turned[i]);
      _mm512_storeu_si512(to + 64 * i, upper_in_order(x, rest(x)));
    }
  }
}

/// Splits the state for the step's reads, then lets it decay, for 16 columns.
inline void split_and_decay(const AmxMemory& m, std::int64_t column) {
  float* S = m.state(column);
  const std::int64_t at = column / tile_columns * m.steps * tile_bytes;
  std::byte *high = m.high + at, *low = m.low + at;
  const auto decayed = [&](__m512 s, std::int64_t d) HWY_ATTR {
    const __m512i keep = _mm512_castps_si512(_mm512_set1_ps(m.w.keep[d]));
    const __m512 kept = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(s), keep));
    return _mm512_fmadd_ps(s, _mm512_set1_ps(m.w.decay[d]), kept);
  };
  for (std::int64_t d = 0; d < m.w.K; d += 2, S += 32, high += 64, low += 64) {
    const __m512 a = _mm512_loadu_ps(S), b = _mm512_loadu_ps(S + 16);
    _mm512_storeu_si512(high, upper_in_turn(a, b));
    _mm512_storeu_si512(low, upper_in_turn(rest(a), rest(b)));
    _mm512_storeu_ps(S, decayed(a, d));
    _mm512_storeu_ps(S + 16, decayed(b, d + 1));
  }
}

/// E of two tiles of columns; missing tokens are zeros.
inline void pack_e(const AmxMemory& m, std::int64_t count) {
  for (std::int64_t n = 0; n < 2; ++n) {
    std::byte* to = m.e + 2 * n * tile_bytes;
    for (std::int64_t i = 0; i < tile_rows; i += 2, to += 64) {
      const float* from = m.w.e + i * block + n * tile_columns;
      const __m512 a = i < count ? _mm512_loadu_ps(from) : _mm512_setzero_ps();
      const __m512 b = i + 1 < count ? _mm512_loadu_ps(from + block) : _mm512_setzero_ps();
      const __m512i high = upper_in_turn(a, b), low = upper_in_turn(rest(a), rest(b));
      _mm512_storeu_si512(to, high);
      _mm512_storeu_si512(to + 512, high);
      _mm512_storeu_si512(to + tile_bytes, low);
      _mm512_storeu_si512(to + tile_bytes + 512, low);
    }
  }
}

template <class Tiles>
void multiply_four() {
  Tiles::template multiply<0, 4, 6>();
  Tiles::template multiply<1, 4, 7>();
  Tiles::template multiply<2, 5, 6>();
  Tiles::template multiply<3, 5, 7>();
}

/// U and O of 32 columns from the state.
template <class Tiles>
void read_state(const AmxMemory& m, std::int64_t column) {
  const std::int64_t apart = m.steps * tile_bytes;
  const std::byte* high = m.high + column / tile_columns * apart;
  const std::byte* low = m.low + column / tile_columns * apart;
  Tiles::template zero<0>();
  Tiles::template zero<1>();
  Tiles::template zero<2>();
  Tiles::template zero<3>();
  for (std::int64_t s = 0; s < m.steps; ++s) {
    const std::byte* rows = m.rows + 4 * s * tile_bytes;
    Tiles::template load<4>(rows, 64);
    Tiles::template load<5>(rows + tile_bytes, 64);
    Tiles::template load<6>(low + s * tile_bytes, 64);
    Tiles::template load<7>(low + apart + s * tile_bytes, 64);
    multiply_four<Tiles>();
    Tiles::template load<6>(high + s * tile_bytes, 64);
    Tiles::template load<7>(high + apart + s * tile_bytes, 64);
    multiply_four<Tiles>();
    Tiles::template load<4>(rows + 2 * tile_bytes, 64);
    Tiles::template load<5>(rows + 3 * tile_bytes, 64);
    multiply_four<Tiles>();
  }
  constexpr std::int64_t row_bytes = block * std::int64_t{sizeof(float)};
  Tiles::template store<0>(m.u, row_bytes);
  Tiles::template store<1>(m.u + 16, row_bytes);
  Tiles::template store<2>(m.o, row_bytes);
  Tiles::template store<3>(m.o + 16, row_bytes);
}

/// R into w.e, and the part of O that comes from the state over v.
inline void start_solve(const AmxMemory& m, std::int64_t count, float* v) {
  for (std::int64_t i = 0; i < count; ++i) {
    const __m512 beta = _mm512_set1_ps(m.w.beta[i]);
    for (std::int64_t c = 0; c < block; c += 16) {
      float* at = v + i * m.w.C + c;
      const __m512 missing =
          _mm512_sub_ps(_mm512_loadu_ps(at), _mm512_loadu_ps(m.u + i * block + c));
      _mm512_storeu_ps(m.w.e + i * block + c, _mm512_mul_ps(beta, missing));
      _mm512_storeu_ps(at, _mm512_loadu_ps(m.o + i * block + c));
    }
  }
}

/// S += (kept K)^T E for 32 columns.
template <class Tiles>
void write_state(const AmxMemory& m, std::int64_t column) {
  float *left = m.state(column), *right = m.state(column + tile_columns);
  const auto write_pair = [&](std::int64_t d, bool both) {
    float* const sums[4] = {left + d * 16, right + d * 16, left + (d + 16) * 16,
                            right + (d + 16) * 16};
    const std::byte* kept = m.kept + d / 16 * tile_bytes;
    Tiles::template load<0>(sums[0], 64);
    Tiles::template load<1>(sums[1], 64);
    Tiles::template load<4>(kept, 64);
    Tiles::template load<6>(m.e, 64);
    Tiles::template load<7>(m.e + 2 * tile_bytes, 64);
    if (!both) {
      Tiles::template multiply<0, 4, 6>();
      Tiles::template multiply<1, 4, 7>();
      Tiles::template load<6>(m.e + tile_bytes, 64);
      Tiles::template load<7>(m.e + 3 * tile_bytes, 64);
      Tiles::template multiply<0, 4, 6>();
      Tiles::template multiply<1, 4, 7>();
    } else {
      Tiles::template load<2>(sums[2], 64);
      Tiles::template load<3>(sums[3], 64);
      Tiles::template load<5>(kept + tile_bytes, 64);
      multiply_four<Tiles>();
      Tiles::template load<6>(m.e + tile_bytes, 64);
      Tiles::template load<7>(m.e + 3 * tile_bytes, 64);
      multiply_four<Tiles>();
      Tiles::template store<2>(sums[2], 64);
      Tiles::template store<3>(sums[3], 64);
    }
    Tiles::template store<0>(sums[0], 64);
    Tiles::template store<1>(sums[1], 64);
  };
  for (std::int64_t d = 0; d < m.w.K; d += 32) write_pair(d, d + 16 < m.w.K);
}

/// The columns of an item between a state tensor and tiles of 16; missing columns and channels are
/// zeros.
inline void load_tiles(const KdaCall& call, const KdaItem& item, const AmxMemory& m) {
  const KdaProblem& p = call.problem;
  const std::int64_t row = call.sequences[item.sequence].initial;
  std::fill_n(m.w.state, m.w.K * m.w.C, 0.0F);
  for (std::int64_t c = 0; row >= 0 && c < item.columns; c += tile_columns) {
    load_state({call.initial, p.state_layout, row, item.head, item.first_column + c,
                std::min(tile_columns, item.columns - c)},
               p.key_dim, tile_columns, m.state(c));
  }
}
inline void store_tiles(const KdaCall& call, const TensorView& states, std::int64_t row,
                        const KdaItem& item, const AmxMemory& m) {
  const KdaProblem& p = call.problem;
  for (std::int64_t c = 0; row >= 0 && c < item.columns; c += tile_columns) {
    store_state({states, p.state_layout, row, item.head, item.first_column + c,
                 std::min(tile_columns, item.columns - c)},
                p.key_dim, tile_columns, m.state(c));
  }
}

template <class Tiles>
void run_amx_item(const KdaCall& call, const KdaItem& item, std::byte* memory) {
  const KdaProblem& p = call.problem;
  const KdaSequence& s = call.sequences[item.sequence];
  const AmxMemory m(p, item.columns, memory);
  const Scratch& w = m.w;
  const KdaInputs in(call, s, item.head);
  const Tiles tiles;
  // The sums of four kept keys are taken together, also where fewer tokens have been seen.
  std::fill_n(w.kept, step_tokens * w.K, 0.0F);
  std::fill_n(m.high, (m.rows - m.high), std::byte{0});  // an odd half step stays zero
  load_tiles(call, item, m);
  for (std::int64_t first = 0; first < s.length; first += step_tokens) {
    if (call.args.chunk_states.present() && first % p.chunk_size == 0) {
      store_tiles(call, call.args.chunk_states, item.first_chunk + first / p.chunk_size, item, m);
    }
    const std::int64_t count = std::min(step_tokens, s.length - first);
    prepare(in, item, first, count, w);
    pack_rows(m, count);
    pack_kept(m, count);
    for (std::int64_t c = 0; c < w.C; c += block) {
      // A share of the next step's rows with every block: together they would flood the queues.
      for (std::int64_t i = c / block; i < step_tokens; i += w.C / block) {
        in.prefetch(first + count + i);
      }
      split_and_decay(m, c);
      split_and_decay(m, c + tile_columns);
      read_state<Tiles>(m, c);
      start_solve(m, count, w.v + c);
      solve(count, w.v + c, w);
      pack_e(m, count);
      write_state<Tiles>(m, c);
    }
    write_rows(call, item, first, count, w.C, w.v);
  }
  store_tiles(call, call.final, s.final, item, m);
}

inline std::size_t amx_worker_bytes(const KdaProblem& p, std::int64_t columns) {
  return AmxMemory(p, columns, nullptr).bytes;
}

template <class Tiles>
constexpr AmxKda kda_on() {
  return {amx_worker_bytes, run_amx_item<Tiles>};
}

}  // namespace
}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
