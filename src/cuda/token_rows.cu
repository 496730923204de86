// SPDX-License-Identifier: Apache-2.0
// pack, unpack and merge_states on the device: a thread a word, a warp a row.
#include <algorithm>

#include "cuda/elements.cuh"
#include "cuda/token_rows.h"

namespace packattn::cuda {
namespace {

constexpr int threads = 256;

/// Where word number `index` of a token lies in its two places.
struct WordOffsets {
  std::int64_t padded = 0, packed = 0;
  __device__ WordOffsets(const TokenShape& token, std::int64_t index) {
    for (int dim = token.dims - 1; dim >= 0; --dim) {
      const auto at = static_cast<std::size_t>(dim);
      const std::int64_t i = index % token.size[at];
      index /= token.size[at];
      padded += i * token.padded_stride[at];
      packed += i * token.packed_stride[at];
    }
  }
};

/// A padded position and its packed row, -1 if it has none.
struct Place { std::int64_t batch, position, row; };

__device__ Place place_of(const TokenCopy& c, std::int64_t index) {
  if (c.rows != nullptr) {
    const std::int64_t flat = c.rows[index];
    return {flat / c.width, flat % c.width, index};
  }
  Place place{index / c.width, index % c.width, -1};
  if (c.sequences == nullptr) return place;
  const DeviceSequence s = c.sequences[place.batch];
  const std::int64_t length = c.keys ? s.k_length : s.q_length;
  if (place.position < length) place.row = (c.keys ? s.k_start : s.q_start) + place.position;
  return place;
}

template <class Word>
__global__ void __launch_bounds__(threads)
    token_copy_kernel(const __grid_constant__ TokenCopy c, const std::int64_t places) {
  auto* padded = static_cast<Word*>(c.padded);
  auto* packed = static_cast<Word*>(c.packed);
  const std::int64_t total = places * c.token.words;
  for (std::int64_t i = block_index() * threads + thread_index(); i < total;
       i += block_count() * threads) {
    const Place place = place_of(c, i / c.token.words);
    const WordOffsets word(c.token, i % c.token.words);
    Word& there =
        padded[place.batch * c.batch_stride + place.position * c.position_stride + word.padded];
    if (place.row < 0) {
      if (!c.packing) there = Word{};
      continue;
    }
    Word& here = packed[place.row * c.row_stride + word.packed];
    if (c.packing) here = there;
    else there = here;
  }
}

template <class Word>
void launch_copy(const TokenCopy& c, std::int64_t places, cudaStream_t stream) {
  const std::int64_t total = places * c.token.words;
  if (total == 0) return;
  const std::int64_t blocks = std::min<std::int64_t>((total + threads - 1) / threads, INT32_MAX);
  launch("pack", token_copy_kernel<Word>, blocks, threads, 0, stream, c, places);
}

void launch_words(const TokenCopy& c, std::int64_t places, cudaStream_t stream) {
  switch (c.word_bytes) {
    case 16: return launch_copy<float4>(c, places, stream);
    case 8: return launch_copy<std::uint64_t>(c, places, stream);
    case 4: return launch_copy<std::uint32_t>(c, places, stream);
    case 2: return launch_copy<std::uint16_t>(c, places, stream);
    default: return launch_copy<std::uint8_t>(c, places, stream);
  }
}

/// Weights of two parts and the lse of both, as on the host.
struct Weights {
  double a = 0, b = 0, lse = -INFINITY;
  bool use_a, use_b;  ///< a part without keys is not read: 0 * NaN would be NaN
  __device__ Weights(double lse_a, double lse_b)
      : use_a(lse_a != -INFINITY), use_b(lse_b != -INFINITY) {
    if (!use_a && !use_b) return;
    const double m = lse_a < lse_b ? lse_b : lse_a;
    const double exp_a = exp(lse_a - m);
    const double exp_b = exp(lse_b - m);
    a = exp_a / (exp_a + exp_b);
    b = exp_b / (exp_a + exp_b);
    lse = m + log(exp_a + exp_b);
  }
};

__global__ void __launch_bounds__(threads) merge_kernel(const __grid_constant__ MergeParams p) {
  for (std::int64_t row = block_index() * (threads / 32) + warp_index(); row < p.tokens * p.heads;
       row += block_count() * (threads / 32)) {
    const std::int64_t token = row / p.heads;
    const std::int64_t head = row % p.heads;
    const auto lse_at = [&](std::size_t i) {
      return head * p.lse_head_stride[i] + token * p.lse_token_stride[i];
    };
    const auto at = [&](std::size_t i) {
      return token * p.token_stride[i] + head * p.head_stride[i];
    };
    const Weights weights(p.lse_a[lse_at(0)], p.lse_b[lse_at(1)]);
    const auto weight_a = static_cast<float>(weights.a);
    const auto weight_b = static_cast<float>(weights.b);
    __syncwarp();  // the result may take the place of lse_a
    for (std::int64_t d = lane_index(); d < p.width; d += 32) {
      float x = 0;
      if (weights.use_a) x = __fmul_rn(weight_a, load_element(p.out_a, p.dtype, at(0) + d));
      if (weights.use_b) {
        const float y = __fmul_rn(weight_b, load_element(p.out_b, p.dtype, at(1) + d));
        x = weights.use_a ? __fadd_rn(x, y) : y;
      }
      store_element(p.out, p.out_dtype, at(2) + d, x);
    }
    if (lane_index() == 0) p.lse[lse_at(2)] = static_cast<float>(weights.lse);
  }
}

}  // namespace

void launch_token_copy(const TokenCopy& copy, cudaStream_t stream) {
  const std::int64_t positions = copy.batches * copy.width;
  if (copy.rows == nullptr) return launch_words(copy, positions, stream);
  if (!copy.packing) {  // zeros first
    TokenCopy clear = copy;
    clear.rows = nullptr;
    launch_words(clear, positions, stream);
  }
  launch_words(copy, copy.row_count, stream);
}

void launch_merge(const MergeParams& p, cudaStream_t stream) {
  constexpr int rows = threads / 32;
  const std::int64_t units = p.tokens * p.heads;
  if (units == 0) return;
  launch("merge_states", merge_kernel, std::min<std::int64_t>((units + rows - 1) / rows, INT32_MAX),
         threads, 0, stream, p);
}

}  // namespace packattn::cuda
