// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "packattn/attention.h"

#include "cuda/device_plan.h"

// Whole tokens moved, and partial results joined: no arithmetic worth an implementation list.

namespace packattn::cuda {

/// Words of one token in both its places, dimension by dimension.
struct TokenShape {
  int dims = 0;
  std::array<std::int64_t, 8> size{}, padded_stride{}, packed_stride{};
  std::int64_t words = 1;
};

struct TokenCopy {
  void *padded, *packed;
  std::int64_t batch_stride, position_stride;  ///< of padded
  std::int64_t row_stride;                     ///< of packed
  TokenShape token;
  int word_bytes;
  std::int64_t batches, width;      ///< B, S
  const DeviceSequence* sequences;  ///< null with `rows`
  const std::int64_t* rows;         ///< padded position of each packed row
  std::int64_t row_count;
  bool keys;     ///< the sequences' key side
  bool packing;  ///< padded to packed; else back, with zeros where there is no token
};
void launch_token_copy(const TokenCopy& copy, cudaStream_t stream);

struct MergeParams {
  void *out_a, *out_b, *out;
  const float *lse_a, *lse_b;
  float* lse;
  std::array<std::int64_t, 3> token_stride, head_stride;  ///< of out_a, out_b, out
  std::array<std::int64_t, 3> lse_head_stride, lse_token_stride;
  DType dtype, out_dtype;
  std::int64_t tokens, heads, width;
};
void launch_merge(const MergeParams& p, cudaStream_t stream);

}  // namespace packattn::cuda
