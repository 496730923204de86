// SPDX-License-Identifier: Apache-2.0
// The neighbours of KDA on the device: norms (a warp a row), the gate (a thread a channel), the
// short convolution (a thread a channel, over a tile of tokens). All are bound by memory. Sums are
// in fp64 and in an order that the width alone fixes.
#include <algorithm>

#include "cuda/kda_token.cuh"
#include "cuda/layer_params.h"

namespace packattn::cuda {
namespace {

constexpr int threads = 256;

__device__ float load_at(const RowTensor& x, std::int64_t offset) {
  return load_element(x.data, x.dtype, offset);
}
__device__ void store_at(const RowTensor& x, std::int64_t offset, float value) {
  store_element(x.data, x.dtype, offset, value);
}

// ---- norms ----------------------------------------------------------------------------------

__global__ void __launch_bounds__(threads) norm_kernel(const __grid_constant__ NormParams p) {
  for (std::int64_t row = block_index() * (threads / 32) + warp_index(); row < p.rows;
       row += block_count() * (threads / 32)) {
    const std::int64_t x = p.x.rows.offset(row);
    const std::int64_t residual = p.residual.rows.offset(row);
    const auto sum = [&](std::int64_t d) {
      const float r = load_at(p.x, x + d);
      return p.residual.data != nullptr ? r + load_at(p.residual, residual + d) : r;
    };
    double squares = 0;
    for (std::int64_t d = lane_index(); d < p.width; d += 32) {
      const float r = sum(d);
      squares = fma(static_cast<double>(r), static_cast<double>(r), squares);
      if (p.residual_out.data != nullptr) {
        store_at(p.residual_out, p.residual_out.rows.offset(row) + d, r);
      }
    }
    squares = warp_sum(squares);
    if (p.mean) squares /= static_cast<double>(p.width);
    const auto factor = static_cast<float>(1 / sqrt(squares + p.eps));
    for (std::int64_t d = lane_index(); d < p.width; d += 32) {
      float y = sum(d) * factor;
      if (p.weight.data != nullptr) y *= load_at(p.weight, d);
      if (p.bias.data != nullptr) y += load_at(p.bias, d);
      if (p.gate.data != nullptr) {
        const float z = load_at(p.gate, p.gate.rows.offset(row) + d);
        y *= p.swish ? z * sigmoid(z) : sigmoid(z);
      }
      store_at(p.out, p.out.rows.offset(row) + d, y);
    }
  }
}

// ---- gate -----------------------------------------------------------------------------------

__global__ void __launch_bounds__(threads)
    gate_kernel(const __grid_constant__ KdaParams p, const std::int64_t count) {
  for (std::int64_t i = block_index() * threads + thread_index(); i < count;
       i += block_count() * threads) {
    const auto d = static_cast<int>(i % p.key_dim);
    std::int64_t rest = i / p.key_dim;
    const auto head = static_cast<int>(rest % p.heads);
    rest /= p.heads;
    const KdaSequenceView s{
        .row = rest / p.length, .start = 0, .n = 0, .length = p.length, .state = {}};
    const auto t = static_cast<std::int32_t>(rest % p.length);
    const float raw = load_element(p.g, token_offset(p.g, s, t, head) + d);
    store_element(p.out, token_offset(p.out, s, t, head) + d,
                  log_decay(p, raw, gate_bias(p, head, d), gate_rate(p, head)));
  }
}

// ---- short convolution ----------------------------------------------------------------------

__device__ KdaRow row_of(const ConvolutionParams& p, std::int32_t n) {
  if (p.rows != nullptr) return p.rows[n];
  return {p.initial.data != nullptr ? n : -1, p.final.data != nullptr ? n : -1, 0};
}

/// Input t of a sequence's channel; t < 0 lies in its initial state.
__device__ float input(const ConvolutionParams& p, const DeviceSequence& s, const KdaRow& row,
                       std::int64_t t, std::int64_t channel) {
  if (t >= 0) return load_at(p.x, p.x.rows.offset(s.q_start + t) + channel);
  if (row.initial < 0) return 0;
  return load_element(
      p.initial.data, p.initial.dtype,
      row.initial * p.initial.row_stride + channel * p.initial.channel_stride + p.taps - 1 + t);
}

/// A tile of tokens for a block's channels.
__device__ void convolve(const ConvolutionParams& p, const Tile& tile, std::int64_t channel) {
  const DeviceSequence s = p.batch.sequences[tile.sequence];
  const KdaRow row = row_of(p, tile.sequence);
  const std::int32_t end = min(s.q_length, tile.row + p.tile_tokens);
  for (std::int32_t t = tile.row; t < end; ++t) {
    float y = 0;
    if (row.skipped == 0) {
      y = p.bias.data != nullptr ? load_at(p.bias, channel) : 0.0F;
      for (std::int64_t i = 0; i < p.taps; ++i) {
        y = fmaf(load_at(p.weight, p.weight.rows.offset(channel) + i),
                 input(p, s, row, t - p.taps + 1 + i, channel), y);
      }
      if (p.silu) y *= sigmoid(y);
    }
    store_at(p.out, p.out.rows.offset(s.q_start + t) + channel, y);
  }
}

__global__ void __launch_bounds__(threads)
    convolution_kernel(const __grid_constant__ ConvolutionParams p, const std::int64_t groups) {
  const std::int64_t units = (static_cast<std::int64_t>(*p.batch.tile_count) + 1) * groups;
  for (std::int64_t unit = block_index(); unit < units; unit += block_count()) {
    const std::int64_t channel = unit % groups * threads + thread_index();
    if (channel >= p.width) continue;
    if (unit / groups < *p.batch.tile_count) {
      convolve(p, p.batch.tiles[unit / groups], channel);
      continue;
    }
    for (std::int32_t n = 0; n <= p.batch.size; ++n) {
      const Gap gap = p.batch.gaps[n];
      for (std::int64_t t = gap.begin; t < gap.end; ++t) {
        store_at(p.out, p.out.rows.offset(t) + channel, 0);
      }
    }
  }
}

/// The last W - 1 inputs of every sequence become its state, once all tiles have read the old one.
__global__ void __launch_bounds__(threads)
    window_kernel(const __grid_constant__ ConvolutionParams p, const std::int64_t groups) {
  const std::int64_t units = p.batch.size * groups;
  for (std::int64_t unit = block_index(); unit < units; unit += block_count()) {
    const std::int64_t channel = unit % groups * threads + thread_index();
    const auto n = static_cast<std::int32_t>(unit / groups);
    const DeviceSequence s = p.batch.sequences[n];
    const KdaRow row = row_of(p, n);
    if (channel >= p.width || s.k_length < 0 || row.skipped != 0 || row.final < 0) continue;
    // Upwards, so that a state moved in place is read before it is written.
    for (std::int64_t i = 0; i + 1 < p.taps; ++i) {
      store_element(p.final.data, p.final.dtype,
                    row.final * p.final.row_stride + channel * p.final.channel_stride + i,
                    input(p, s, row, s.q_length + i - (p.taps - 1), channel));
    }
  }
}

std::int64_t blocks_for(std::int64_t units) { return std::min<std::int64_t>(units, INT32_MAX); }

}  // namespace

void launch_norm(const NormParams& p, const char* name, cudaStream_t stream) {
  constexpr int rows = threads / 32;
  if (p.rows == 0) return;
  launch(name, norm_kernel, blocks_for((p.rows + rows - 1) / rows), threads, 0, stream, p);
}

void launch_kda_gate(const KdaParams& p, std::int64_t batches, cudaStream_t stream) {
  const std::int64_t count = batches * p.length * p.heads * p.key_dim;
  if (count == 0) return;
  launch("simt/kda_gate", gate_kernel, blocks_for((count + threads - 1) / threads), threads, 0,
         stream, p, count);
}

void launch_convolution(const ConvolutionParams& p, std::int64_t tile_bound, cudaStream_t stream) {
  const std::int64_t groups = (p.width + threads - 1) / threads;
  launch("simt/short_convolution", convolution_kernel, blocks_for((tile_bound + 1) * groups),
         threads, 0, stream, p, groups);
  if (p.final.data == nullptr || p.taps == 1 || p.batch.size == 0) return;
  launch("simt/short_convolution", window_kernel, blocks_for(p.batch.size * groups), threads, 0,
         stream, p, groups);
}

}  // namespace packattn::cuda
