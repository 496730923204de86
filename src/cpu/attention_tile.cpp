// SPDX-License-Identifier: Apache-2.0
// Softmax attention of a tile of query rows, in vectors; docs/kernels/cpu-attention.md explains it.
//
//   for each tile of 128 keys                                        arrays (fp32)
//     pack    K into panels with the keys in the lanes, V as it is   keys, values
//     score   S = Q K^T, blocks of rows x a panel of keys            scores
//     soften  m' = max(m, S), P = 2^((S - m') c), l = l a + sum P    scores, part.maximum, part.sum
//     gather  O = O a + P V, blocks of rows x a panel of columns     part.values
//
// A row's bits depend on nothing but the row: every sum runs over the keys in order, in one chain
// per key tile; a key that the row does not see adds an exact 0, so that whether a neighbour made
// the loops visit it changes nothing; and a block with fewer rows runs the same chains.
#include "cpu/attention_tile.h"

#include <algorithm>
#include <vector>

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_tile.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/attention_loop-inl.h"

#if PACKATTN_TARGET_HAS_ROW
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

/// Both products in fp32; T is the type of q, k and v.
template <class T>
struct Fp32Products {
  static std::int64_t query_floats(const AttentionProblem& problem) { return padded_head(problem); }
  static void pack_keys(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
    HWY_NAMESPACE::pack_keys<T>(tile, keys.first, {keys.begin, keys.end}, w);
  }
  static bool pack_values(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
    return HWY_NAMESPACE::pack_values<T>(tile, keys.first, {keys.begin, keys.end}, w);
  }

  /// Rows from `r` on against the panel of keys at `p`.
  template <int Rows>
  static void score(const AttentionTile& tile, const TileScratch& w, std::int64_t r,
                    std::int64_t p) {
    const std::int64_t depth = padded_head(tile.problem);
    score_block<Rows>(w.q + r * depth, w.keys + p * depth, depth, w.scores + r * key_tile + p);
  }

  /// The keys of a block that need a weight, and the sum of a row's weights once they are rounded.
  static KeyRange weights_of(KeyRange seen) { return seen; }
  static float round_weights(float* /*scores*/, KeyRange /*keys*/, float sum) { return sum; }

  /// Rows from `r` on and the panel of columns at `c`, over the keys `seen`.
  template <int Rows>
  static void gather(const AttentionTile& tile, const TileScratch& w, std::int64_t r,
                     std::int64_t c, KeyRange seen) {
    const std::int64_t columns = padded_value(tile.problem, panel);
    const float* from = w.values + c / panel * (key_tile * panel + panel_gap) + seen.begin * panel;
    const auto packed = [from](std::int64_t j, int n)
                            HWY_ATTR { return hn::Load(df, from + j * panel + n * lanes); };
    gather_block<Rows>(w.scores + r * key_tile + seen.begin, seen.end - seen.begin, packed,
                       w.rescale + r, w.part.values + r * columns + c, columns);
  }
  static void gather_alone(const AttentionTile& tile, const TileScratch& w, std::int64_t r,
                           std::int64_t c, KeyRange seen) {
    gather<1>(tile, w, r, c, seen);
  }

  /// Few rows that all see the same keys take the values from the tensor itself: packing them would
  /// cost more than it saves. Decode, in short.
  static void gather_directly(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w,
                              Ahead& ahead) {
    const T* rows[key_tile];
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      rows[j] = reinterpret_cast<const T*>(tile.v[keys.first + j]);
    }
    const std::int64_t columns = tile.problem.value_dim;
    for (std::int64_t c = 0; c < columns; c += panel) {
      ahead.step();
      const T* const* from = rows + keys.begin;
      const auto direct = [from, c](std::int64_t j, int n)
                              HWY_ATTR { return load_floats(df, from[j] + c + n * lanes); };
      with_block(std::ssize(tile.rows), [&](auto count) HWY_ATTR {
        gather_block<count()>(w.scores + keys.begin, keys.end - keys.begin, direct, w.rescale,
                              w.part.values + c, columns);
      });
    }
  }
};

void attend(const AttentionTile& tile, std::int64_t split, const TileScratch& w) {
  with_float_type(tile.problem.dtype,
                  [&]<class T>(T) { attend_split<Fp32Products<T>>(tile, split, w); });
}

void load_queries(const AttentionTile& tile, const TileScratch& w) {
  with_float_type(tile.problem.dtype, [&]<class T>(T) { pack_queries<T>(tile, w); });
}

}  // namespace

TileKernel kernel(std::string_view name) {
  return {.name = name,
          .target = HWY_TARGET,
          .block_rows = block_rows,
          .panel = panel,
          .load_queries = load_queries,
          .attend = attend,
          .merge = merge,
          .finish = finish};
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace packattn::cpu {

std::span<const TileKernel> fp32_kernels() {
  static const std::vector<TileKernel> kernels = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::kernel("cpu/attention.avx512"),
#endif
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::kernel("cpu/attention.avx2"),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::kernel("cpu/attention.neon"),
#endif
  };
  return kernels;
}

}  // namespace packattn::cpu
#endif
