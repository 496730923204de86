// SPDX-License-Identifier: Apache-2.0
// The short causal convolution in vectors of channels. The channels of a sequence are independent:
// an item is one block of them, from its state through all tokens to its state.
#include <algorithm>
#include <array>

#include "cpu/cpu.h"
#include "cpu/parallel.h"
#include "cpu/simd_support.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/short_convolution.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
#include "cpu/kda_inputs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace packattn::cpu::HWY_NAMESPACE {
namespace {

constexpr hn::ScalableTag<float> df;
using Vec = hn::Vec<decltype(df)>;
constexpr std::int64_t lanes = hn::MaxLanes(df);
constexpr std::int64_t channel_block = 256;

/// One channel block of one sequence. `window` holds the last W inputs in fp32, [W][block], as a
/// ring; `weights` is [W][block].
void convolve(const ShortConvolutionCall& call, const KdaSequence& s, std::int64_t first,
              float* window, float* weights) {
  const ShortConvolutionArgs& a = call.args;
  const std::int64_t W = call.taps, count = std::min(channel_block, call.problem.width - first);
  const std::int64_t padded = KdaInputs::padded(count);
  const auto slot = [&](std::int64_t t) { return window + t % W * channel_block; };
  const auto one = [](const TensorView& x, std::int64_t at) {
    float value = 0;
    widen_from(x, at, 1, 1, &value);
    return value;
  };
  for (std::int64_t i = 0; i < W; ++i) {
    std::fill_n(window + i * channel_block, channel_block, 0.0F);
    for (std::int64_t c = 0; c < count; ++c) {
      weights[i * channel_block + c] = one(a.weight, (first + c) * a.weight.stride(0) + i);
      if (i + 1 == W || s.initial < 0) continue;
      const TensorView& state = call.initial;
      slot(i)[c] = one(state, s.initial * state.stride(0) + (first + c) * state.stride(1) + i);
    }
    std::fill(weights + i * channel_block + count, weights + i * channel_block + padded, 0.0F);
  }
  std::array<float, channel_block> bias{}, y{};
  if (a.bias.present()) widen_from(a.bias, first, count, padded, bias.data());
  // Input t of the sequence is number t + W - 1 of the ring.
  for (std::int64_t t = 0; t < s.length; ++t) {
    widen_from(a.x, (s.start + t) * a.x.stride(0) + first, count, padded, slot(t + W - 1));
    for (std::int64_t c = 0; c < padded; c += lanes) {
      Vec sum = hn::LoadU(df, bias.data() + c);
      for (std::int64_t i = 0; i < W; ++i) {
        sum = hn::MulAdd(hn::LoadU(df, weights + i * channel_block + c),
                         hn::LoadU(df, slot(t + i) + c), sum);
      }
      if (call.silu) sum = hn::Mul(sum, sigmoid(df, sum));
      hn::StoreU(sum, df, y.data() + c);
    }
    with_float_type(a.out.dtype(), [&](auto type) HWY_ATTR {
      narrow(y.data(), static_cast<std::size_t>(count),
             a.out.as<decltype(type)>() + (s.start + t) * a.out.stride(0) + first);
    });
  }
  for (std::int64_t i = 0; s.final >= 0 && i + 1 < W; ++i) {
    with_float_type(call.final.dtype(), [&](auto type) {
      using T = decltype(type);
      for (std::int64_t c = 0; c < count; ++c) {
        call.final
            .as<T>()[s.final * call.final.stride(0) + (first + c) * call.final.stride(1) + i] =
            store<T>(slot(s.length + i)[c]);
      }
    });
  }
}

std::size_t worker_bytes(const ShortConvolutionCall& call) {
  return static_cast<std::size_t>(2 * call.taps * channel_block) * sizeof(float);
}

void run(const ShortConvolutionCall& call, const Plan&, const RunContext& context) {
  const std::int64_t blocks = (call.problem.width + channel_block - 1) / channel_block;
  const auto sequences = static_cast<std::int64_t>(call.sequences.size());
  parallel_for_items(sequences * blocks, context, [&](std::int64_t item, int worker) {
    const KdaSequence& s = call.sequences[static_cast<std::size_t>(item / blocks)];
    if (s.skipped || s.length == 0) return;
    auto* memory = reinterpret_cast<float*>(context.workspace.data() +
                                            static_cast<std::size_t>(worker) * worker_bytes(call));
    convolve(call, s, item % blocks * channel_block, memory, memory + call.taps * channel_block);
  });
}

std::shared_ptr<const Plan> plan(const ShortConvolutionCall& call, int threads) {
  auto result = std::make_shared<Plan>();
  result->workspace_bytes = worker_bytes(call) * static_cast<std::size_t>(threads);
  return result;
}

constexpr std::string_view name = HWY_TARGET == HWY_AVX3   ? "cpu/short_convolution.avx512"
                                  : HWY_TARGET == HWY_AVX2 ? "cpu/short_convolution.avx2"
                                                           : "cpu/short_convolution.neon";

std::optional<Fault> decline(const ShortConvolutionCall&) { return decline_simd(name, HWY_TARGET); }

}  // namespace

ShortConvolutionImplementation short_convolution_row() { return {name, decline, plan, run}; }

}  // namespace packattn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets with a row

#if HWY_ONCE
namespace packattn::cpu {

std::span<const ShortConvolutionImplementation> short_convolution() {
  static const std::vector<ShortConvolutionImplementation> rows = {
#if HWY_TARGETS & HWY_AVX3
      N_AVX3::short_convolution_row(),
#endif
#if HWY_TARGETS & HWY_AVX2
      N_AVX2::short_convolution_row(),
#endif
#if HWY_TARGETS & HWY_NEON
      N_NEON::short_convolution_row(),
#endif
  };
  return rows;
}

}  // namespace packattn::cpu
#endif
