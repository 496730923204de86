// SPDX-License-Identifier: Apache-2.0
// Softmax attention of a tile of bf16 rows with AVX-512's product of bf16 pairs: the loops of
// attention_loop-inl.h, other products. Scores are exact products summed in fp32 as in the fp32
// kernels; weights are rounded to bf16 for P V, while their sum stays fp32. Twice the rate of fp32
// on AMD Zen 4 and newer; on the Intel processors that have the instruction it runs at half that of
// fp32, so they decline.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/attention_tile.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_ARCH_X86
#include "cpu/attention_bf16_blocks.h"
#endif
#include "cpu/attention_loop-inl.h"

#if PACKATTN_TARGET_HAS_ROW && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

static_assert(bf16::block_rows == block_rows && bf16::panel == panel &&
              bf16::vectors * 16 == panel);

/// Units of two dimensions, as many as whole 16-byte steps need.
std::int64_t head_pairs(const AttentionProblem& problem) {
  return round_up(problem.head_dim, 8) / 2;
}

void copy_padded(const std::byte* from, std::int64_t dims, std::int64_t pairs, float* to) {
  std::fill_n(to, pairs, 0.0F);
  std::memcpy(to, from, static_cast<std::size_t>(dims) * sizeof(BFloat16));
}

struct Bf16Products {
  static std::int64_t query_floats(const AttentionProblem& problem) { return head_pairs(problem); }
  static void pack_keys(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
    const std::int64_t dims = tile.problem.head_dim, pairs = head_pairs(tile.problem);
    for (std::int64_t p = keys.begin / panel * panel; p < keys.end; p += panel) {
      const std::byte* rows[panel];
      for (std::int64_t i = 0; i < panel; ++i) {
        const std::int64_t j = p + i;
        float* copy = w.widened + i * pairs;
        rows[i] = reinterpret_cast<const std::byte*>(copy);
        if (j < keys.begin || j >= keys.end) std::fill_n(copy, pairs, 0.0F);
        else if (dims % 8 == 0) rows[i] = tile.k[keys.first + j];
        else copy_padded(tile.k[keys.first + j], dims, pairs, copy);
      }
      pack_panel<float>(rows, pairs * 4, w.keys + p * pairs);
    }
  }

  template <int Rows>
  static void score(const AttentionTile& tile, const TileScratch& w, std::int64_t r,
                    std::int64_t p) {
    const std::int64_t pairs = head_pairs(tile.problem);
    bf16::score_block<Rows>(units(w.q + r * pairs), units(w.keys + p * pairs), pairs,
                            w.scores + r * key_tile + p);
  }

  /// Both keys of a pair need a weight, and whole vectors are rounded.
  static KeyRange weights_of(KeyRange seen) {
    return {seen.begin / lanes * lanes, round_up(seen.end, lanes)};
  }
  static float round_weights(float* scores, KeyRange keys, float /*sum*/) {
    return keys.empty() ? 0 : bf16::round_weights(scores, keys.begin, keys.end);
  }

  /// Panels [key_tile / 2, panel] of pairs of values: column c of keys 2 j and 2 j + 1 in one unit.
  static bool pack_values(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w) {
    const std::int64_t dims = tile.problem.value_dim;
    const std::int64_t columns = padded_value(tile.problem, panel);
    const auto low = hn::Set(di, 0x7fff), high = hn::Set(di, 0x7fff0000);
    auto largest_low = hn::Zero(di), largest_high = largest_low;  // magnitudes, as bits
    for (std::int64_t j = keys.begin / 2 * 2; j < keys.end; j += 2) {
      const std::byte* even = j < keys.begin ? nullptr : tile.v[keys.first + j];
      const std::byte* odd = j + 1 >= keys.end ? nullptr : tile.v[keys.first + j + 1];
      for (std::int64_t c = 0; c < columns; c += lanes) {
        const auto pair = hn::BitCast(
            di, hn::Or(load_column(even, c, dims), hn::ShiftLeft<16>(load_column(odd, c, dims))));
        largest_low = hn::Max(largest_low, hn::And(pair, low));
        largest_high = hn::Max(largest_high, hn::And(pair, high));
        float* to = w.values + c / panel * (key_tile * panel + panel_gap);
        hn::Store(hn::BitCast(df, pair), df, to + j / 2 * panel + c % panel);
      }
    }
    return hn::AllTrue(di, hn::Lt(largest_low, hn::Set(di, 0x7f80))) &&
           hn::AllTrue(di, hn::Lt(largest_high, hn::Set(di, 0x7f800000)));
  }

  template <int Rows>
  static void gather(const AttentionTile& tile, const TileScratch& w, std::int64_t r,
                     std::int64_t c, KeyRange seen) {
    gather_pairs<Rows>(tile, w, r, c, seen, {});
  }
  static void gather_alone(const AttentionTile& tile, const TileScratch& w, std::int64_t r,
                           std::int64_t c, KeyRange seen) {
    gather_pairs<1>(tile, w, r, c, seen, mask_of(seen));
  }
  /// Few rows that all see the same keys: decode. A pair that reaches beyond them has one row
  /// twice, of which the mask leaves one.
  static void gather_directly(const AttentionTile& tile, const TileKeys& keys, const TileScratch& w,
                              Ahead& ahead) {
    const std::int64_t begin = keys.begin / 2, end = round_up(keys.end, 2) / 2;
    const std::byte* rows[key_tile];
    for (std::int64_t j = 2 * begin; j < 2 * end; ++j) {
      rows[j] = tile.v[keys.first + std::clamp(j, keys.begin, keys.end - 1)];
    }
    const std::int64_t columns = tile.problem.value_dim;
    for (std::int64_t c = 0; c < columns; c += panel) {
      ahead.step();
      with_block(std::ssize(tile.rows), [&](auto count) {
        bf16::gather_direct<count()>(
            w.scores + begin, rows + 2 * begin, c * std::int64_t{sizeof(BFloat16)}, end - begin,
            mask_of({keys.begin, keys.end}), w.rescale, w.part.values + c, columns);
      });
    }
  }

 private:
  /// Without the halves of the outer pairs that are not `seen`.
  static bf16::PairMask mask_of(KeyRange seen) {
    bf16::PairMask mask;
    if (seen.begin % 2 == 1) mask.first = 0xffff0000U;
    if (seen.end % 2 == 1) mask.last = 0x0000ffffU;
    return mask;
  }

  static const std::uint32_t* units(const float* p) {
    return reinterpret_cast<const std::uint32_t*>(p);
  }

  /// Columns from `c` of a row of values, one in the low half of each lane; zeros for no row.
  static hn::Vec<hn::RebindToUnsigned<Floats>> load_column(const std::byte* row, std::int64_t c,
                                                           std::int64_t dims) {
    const hn::RebindToUnsigned<Floats> du;
    const hn::Rebind<std::uint16_t, Floats> d16;
    if (!row || c >= dims) return hn::Zero(du);
    const auto* from = reinterpret_cast<const std::uint16_t*>(row) + c;
    if (c + lanes <= dims) return hn::PromoteTo(du, hn::LoadU(d16, from));
    HWY_ALIGN std::uint16_t rest[lanes] = {};
    std::copy_n(from, dims - c, rest);
    return hn::PromoteTo(du, hn::Load(d16, rest));
  }

  template <int Rows>
  static void gather_pairs(const AttentionTile& tile, const TileScratch& w, std::int64_t r,
                           std::int64_t c, KeyRange seen, bf16::PairMask mask) {
    const std::int64_t columns = padded_value(tile.problem, panel);
    const std::int64_t begin = seen.begin / 2, end = round_up(seen.end, 2) / 2;
    const float* from = w.values + c / panel * (key_tile * panel + panel_gap) + begin * panel;
    bf16::gather_block<Rows>(w.scores + r * key_tile + begin, units(from), end - begin, mask,
                             w.rescale + r, w.part.values + r * columns + c, columns);
  }
};

void load_queries(const AttentionTile& tile, const TileScratch& w) {
  const std::int64_t dims = tile.problem.head_dim, pairs = head_pairs(tile.problem);
  pack_query_blocks(tile, w, pairs * 4,
                    [&](const std::byte* q, float* to) { copy_padded(q, dims, pairs, to); });
}

}  // namespace

TileKernel bf16_kernel() {
  return {.name = "cpu/attention.avx512_bf16",
          .target = HWY_TARGET,
          .block_rows = block_rows,
          .panel = panel,
          .load_queries = load_queries,
          .attend = attend_split<Bf16Products>,
          .merge = merge,
          .finish = finish};
}

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace packattn::cpu {

std::span<const TileKernel> bf16_kernels() {
#if HWY_TARGETS & HWY_AVX3
  static const std::vector<TileKernel> kernels = [] {
    TileKernel kernel = N_AVX3::bf16_kernel();
    kernel.dtype = DType::bf16;
    kernel.needs = "AVX-512 BF16 at full rate, as AMD Zen 4 and newer have it,";
    kernel.fast_here = [] {
      return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_is("amd") != 0;
    };
    return std::vector{kernel};
  }();
  return kernels;
#else
  return {};
#endif
}

}  // namespace packattn::cpu
#endif
