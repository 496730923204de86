// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kda_params.h"

// What sm90/kda_chunk's two kernels hand to each other: for each chunk of 64 tokens of a value head
// an image of the matrices of the chunked form, laid out as the tensor cores read them.

namespace packattn::cuda::sm90 {

/// Sizes that both kernels and the host know.
struct KdaChunkShape {
  static constexpr int tokens = 64;   // of a chunk
  static constexpr int keys = 128;    // channels, padded with zeros
  static constexpr int columns = 64;  // of the state, a warpgroup's share
  static constexpr int largest_value = 256;
};

/// One chunk of one head; fp16, rows of 128 bytes swizzled as wgmma reads them. With k, q scaled to
/// a length of at most 1, D_ij = exp(g_{j+1} + .. + g_i), M = (I + A)^-1.
struct KdaImage {
  std::uint16_t k_start[2][64][64];  ///< k_i D_i0: channels 0..63, 64..127
  std::uint16_t q_start[2][64][64];  ///< q_i D_i0
  std::uint16_t k_end[2][64][64];    ///< k_j D_64j
  std::uint16_t solve[64][64];       ///< M_ij beta_j
  std::uint16_t solve_rest[64][64];  ///< what rounding to fp16 took from it
  std::uint16_t read[64][64];        ///< B_ij = q_i . (k_j D_ij), j <= i
  float decay[128];                  ///< exp(g_1 + .. + g_64)
  float value_scale[64];             ///< what v is scaled by, because k is
  float out_scale[64];               ///< what undoes the scale of q, times c
};
static_assert(sizeof(KdaImage) == 3 * 16384 + 3 * 8192 + 1024);

/// The chunks that are in the workspace at one time: of some heads of every sequence `count` chunks
/// from `first` on. Sequence n's first image is number bases[n]; bases[N] is how many there are.
struct KdaWave {
  std::int32_t* bases;  ///< [N + 1]
  KdaImage* images;     ///< [bound][heads]
  float* carry;         ///< states between waves; null if all chunks are in one
  std::int32_t first, count;
  std::int32_t first_head, heads;
  std::int64_t bound;  ///< images of one head
};

void launch_kda_wave(const KdaParams& p, const KdaWave& wave, cudaStream_t stream);
void launch_kda_prepare(const KdaParams& p, const KdaWave& wave, cudaStream_t stream);
/// `groups`: warpgroups of a block, 1 or 2, of 64 columns each; changes no bit.
void launch_kda_scan(const KdaParams& p, const KdaWave& wave, int groups, cudaStream_t stream);

}  // namespace packattn::cuda::sm90
