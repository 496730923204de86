// SPDX-License-Identifier: Apache-2.0
// The neighbours of KDA on the device: norms (16 or 32 lanes a row), the gate (a thread 8
// channels), the short convolution (a thread 8 channels, over a tile of tokens). All are bound by
// memory: 8 elements a load and a store, and all that a thread needs asked for before it waits for
// any. Sums are in fp64 and in an order that the width alone fixes.
#include <algorithm>

#include "cuda/kda_token.cuh"
#include "cuda/layer_runs.cuh"

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

/// A row's runs in the hands of `team` lanes: run number i belongs to lane i % team. Rows of one
/// run a lane are kept in registers, two rows at once; longer ones are read twice.
template <int team>
__device__ double team_sum(double x) {
#pragma unroll
  for (int step = team / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

struct NormRun {
  Elements x, residual, gate;
  float r[layer_run];

  __device__ void load(const NormParams& p, std::int64_t row, int d, bool gated) {
    const std::int64_t left = row < p.rows ? p.width - d : 0;
    const std::int64_t at = left > 0 ? row : 0;
    x = load_run(p.x, p.x.rows.offset(at) + d, left);
    if (p.residual.data != nullptr) {
      residual = load_run(p.residual, p.residual.rows.offset(at) + d, left);
    }
    if (gated && p.gate.data != nullptr) gate = load_run(p.gate, p.gate.rows.offset(at) + d, left);
  }
  __device__ double evaluate(const NormParams& p, double squares) {
#pragma unroll
    for (int i = 0; i < layer_run; ++i) {
      r[i] = x.decode(p.x.dtype, i);
      if (p.residual.data != nullptr) r[i] += residual.decode(p.residual.dtype, i);
      squares = fma(static_cast<double>(r[i]), static_cast<double>(r[i]), squares);
    }
    return squares;
  }
  __device__ void finish(const NormParams& p, std::int64_t row, int d, double squares) {
    const std::int64_t left = row < p.rows ? p.width - d : 0;
    if (left <= 0) return;
    if (p.mean) squares /= static_cast<double>(p.width);
    const auto factor = static_cast<float>(1 / sqrt(squares + p.eps));
    const Elements weight = p.weight.data != nullptr ? load_run(p.weight, d, left) : Elements{};
    const Elements bias = p.bias.data != nullptr ? load_run(p.bias, d, left) : Elements{};
    float y[layer_run];
#pragma unroll
    for (int i = 0; i < layer_run; ++i) {
      y[i] = r[i] * factor;
      if (p.weight.data != nullptr) y[i] *= weight.decode(p.weight.dtype, i);
      if (p.bias.data != nullptr) y[i] += bias.decode(p.bias.dtype, i);
      if (p.gate.data != nullptr) {
        const float z = gate.decode(p.gate.dtype, i);
        y[i] *= p.swish ? z * sigmoid(z) : sigmoid(z);
      }
    }
    if (p.residual_out.data != nullptr) {
      store_run(p.residual_out, p.residual_out.rows.offset(row) + d, left, r);
    }
    store_run(p.out, p.out.rows.offset(row) + d, left, y);
  }
};

template <int team>
__global__ void __launch_bounds__(threads) short_norm_kernel(const __grid_constant__ NormParams p) {
  constexpr int teams = threads / team;
  const int d = thread_index() % team * layer_run;
  const std::int64_t row = block_index() * (2 * teams) + thread_index() / team;
  NormRun runs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) runs[i].load(p, row + i * teams, d, true);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const double squares = team_sum<team>(runs[i].evaluate(p, 0));
    runs[i].finish(p, row + i * teams, d, squares);
  }
}

__global__ void __launch_bounds__(threads) long_norm_kernel(const __grid_constant__ NormParams p) {
  constexpr int team = 32;
  const std::int64_t row = block_index() * (threads / team) + warp_index();
  NormRun run;
  double squares = 0;
  for (std::int64_t d = lane_index() * layer_run; d < p.width; d += team * layer_run) {
    run.load(p, row, static_cast<int>(d), false);
    squares = run.evaluate(p, squares);
  }
  squares = team_sum<team>(squares);
  for (std::int64_t d = lane_index() * layer_run; d < p.width; d += team * layer_run) {
    run.load(p, row, static_cast<int>(d), true);
    run.evaluate(p, 0);
    run.finish(p, row, static_cast<int>(d), squares);
  }
}

// ---- gate -----------------------------------------------------------------------------------

/// `Index` holds B T HV K / 8: 64-bit divisions would take as long as the memory.
template <class Index>
__global__ void __launch_bounds__(threads)
    gate_kernel(const __grid_constant__ KdaParams p, const Index count, const bool runs) {
  const auto per_head = static_cast<Index>((p.key_dim + layer_run - 1) / layer_run);
  const auto i = static_cast<Index>(block_index() * threads + thread_index());
  if (i >= count) return;
  const auto d = static_cast<int>(i % per_head) * layer_run;
  Index rest = i / per_head;
  const auto head = static_cast<int>(rest % static_cast<Index>(p.heads));
  rest /= static_cast<Index>(p.heads);
  const auto length = static_cast<Index>(p.length);
  const KdaSequenceView s{.row = static_cast<std::int64_t>(rest / length),
                          .start = 0,
                          .n = 0,
                          .length = p.length,
                          .state = {}};
  const auto t = static_cast<std::int32_t>(rest % length);
  const int left = p.key_dim - d;
  const Elements raw = load_run(p.g.data, p.g.dtype, runs, token_offset(p.g, s, t, head) + d, left);
  const float rate = gate_rate(p, head);
  float y[layer_run];
#pragma unroll
  for (int c = 0; c < layer_run; ++c) {
    const float bias = c < left ? gate_bias(p, head, d + c) : 0.0F;
    y[c] = log_decay(p, raw.decode(p.g.dtype, c), bias, rate);
  }
  store_run(p.out.data, p.out.dtype, runs, token_offset(p.out, s, t, head) + d, left, y);
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

/// A tile of tokens for 8 of a thread's channels; what an aligned call of 4 taps gets. The window
/// stays in registers, and four tokens are asked for at once.
constexpr int usual_taps = 4;
constexpr int ahead = 4;

__device__ void convolve_runs(const ConvolutionParams& p, const Tile& tile, std::int64_t channel) {
  const DeviceSequence s = p.batch.sequences[tile.sequence];
  const KdaRow row = row_of(p, tile.sequence);
  const std::int32_t end = min(s.q_length, tile.row + p.tile_tokens);
  float weight[usual_taps][layer_run];
  float window[usual_taps][layer_run];  // the inputs of one token, its own last
  float bias[layer_run];
#pragma unroll
  for (int c = 0; c < layer_run; ++c) {
    bias[c] = p.bias.data != nullptr ? load_at(p.bias, channel + c) : 0.0F;
#pragma unroll
    for (int i = 0; i < usual_taps; ++i) {
      weight[i][c] = load_at(p.weight, p.weight.rows.offset(channel + c) + i);
      window[i][c] = i == 0 ? 0.0F : input(p, s, row, tile.row - usual_taps + i, channel + c);
    }
  }
  for (std::int32_t first = tile.row; first < end; first += ahead) {
    Elements next[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const bool inside = first + k < end;
      const std::int64_t t = s.q_start + (inside ? first + k : first);
      next[k] = load_run(p.x, p.x.rows.offset(t) + channel, inside ? layer_run : 0);
    }
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      if (first + k >= end) return;
      float y[layer_run];
#pragma unroll
      for (int c = 0; c < layer_run; ++c) {
#pragma unroll
        for (int i = 0; i + 1 < usual_taps; ++i) window[i][c] = window[i + 1][c];
        window[usual_taps - 1][c] = next[k].decode(p.x.dtype, c);
        y[c] = bias[c];
#pragma unroll
        for (int i = 0; i < usual_taps; ++i) y[c] = fmaf(weight[i][c], window[i][c], y[c]);
        if (p.silu) y[c] *= sigmoid(y[c]);
        if (row.skipped != 0) y[c] = 0;
      }
      store_run(p.out, p.out.rows.offset(s.q_start + first + k) + channel, layer_run, y);
    }
  }
}

/// A tile of tokens for one channel, of any number of taps.
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

/// `run` channels a thread: 8 or 1.
template <int run>
constexpr int convolution_threads = run == 1 ? threads : 128;

template <int run>
__global__ void __launch_bounds__(convolution_threads<run>)
    convolution_kernel(const __grid_constant__ ConvolutionParams p, const std::int64_t groups) {
  const std::int64_t units = (static_cast<std::int64_t>(*p.batch.tile_count) + 1) * groups;
  for (std::int64_t unit = block_index(); unit < units; unit += block_count()) {
    const std::int64_t channel = (unit % groups * convolution_threads<run> + thread_index()) * run;
    if (channel >= p.width) continue;
    if (unit / groups < *p.batch.tile_count) {
      const Tile tile = p.batch.tiles[unit / groups];
      if constexpr (run == layer_run) convolve_runs(p, tile, channel);
      else convolve(p, tile, channel);
      continue;
    }
    for (std::int32_t n = 0; n <= p.batch.size; ++n) {
      const Gap gap = p.batch.gaps[n];
      for (std::int64_t t = gap.begin; t < gap.end; ++t) {
        for (int c = 0; c < run; ++c) store_at(p.out, p.out.rows.offset(t) + channel + c, 0);
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
  if (p.rows == 0) return;
  const auto blocks = [&](std::int64_t rows) { return (p.rows + rows - 1) / rows; };
  if (p.width <= 16 * layer_run) {
    launch(name, short_norm_kernel<16>, blocks(2 * threads / 16), threads, 0, stream, p);
  } else if (p.width <= 32 * layer_run) {
    launch(name, short_norm_kernel<32>, blocks(2 * threads / 32), threads, 0, stream, p);
  } else {
    launch(name, long_norm_kernel, blocks(threads / 32), threads, 0, stream, p);
  }
}

void launch_kda_gate(const KdaParams& p, std::int64_t batches, bool runs, cudaStream_t stream) {
  const std::int64_t per_head = (p.key_dim + layer_run - 1) / layer_run;
  const std::int64_t count = batches * p.length * p.heads * per_head;
  if (count == 0) return;
  const std::int64_t blocks = (count + threads - 1) / threads;
  if (count < INT32_MAX - threads) {
    launch("simt/kda_gate", gate_kernel<std::uint32_t>, blocks, threads, 0, stream, p,
           static_cast<std::uint32_t>(count), runs);
  } else {
    launch("simt/kda_gate", gate_kernel<std::int64_t>, blocks, threads, 0, stream, p, count, runs);
  }
}

void launch_convolution(const ConvolutionParams& p, std::int64_t tile_bound, cudaStream_t stream) {
  const std::int64_t groups = (p.width + threads - 1) / threads;
  const char* name = "simt/short_convolution";
  if (p.taps == usual_taps && p.x.runs && p.out.runs) {
    constexpr int wide_threads = convolution_threads<layer_run>;
    const std::int64_t wide = (p.width + wide_threads * layer_run - 1) / (wide_threads * layer_run);
    launch(name, convolution_kernel<layer_run>, blocks_for((tile_bound + 1) * wide), wide_threads,
           0, stream, p, wide);
  } else {
    launch(name, convolution_kernel<1>, blocks_for((tile_bound + 1) * groups), threads, 0, stream,
           p, groups);
  }
  if (p.final.data == nullptr || p.taps == 1 || p.batch.size == 0) return;
  launch(name, window_kernel, blocks_for(p.batch.size * groups), threads, 0, stream, p, groups);
}

}  // namespace packattn::cuda
