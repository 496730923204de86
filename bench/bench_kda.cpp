// SPDX-License-Identifier: Apache-2.0
// KDA on the CPU: every implementation that can run here, prefill and decode. Flops are those of
// the recurrence, 7 K V per token and value head (decay 1, u 2, write 2, read 2), for the chunked
// form too, so that rates compare as times do.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "packattn/packattn.h"

namespace {

using namespace packattn;

struct Case {
  Op op;
  std::string implementation;
  std::vector<std::int64_t> lengths;
  std::int64_t heads;
  DType dtype = DType::f32;
  int threads = 0;
};

constexpr std::int64_t K = 128, V = 128;

/// A tensor of `count` elements that owns its memory.
struct Buffer {
  std::vector<std::byte> bytes;
  DType dtype = DType::f32;

  Buffer(DType type, std::int64_t count, std::mt19937& random, float low, float high)
      : bytes(static_cast<std::size_t>(count) * size_of(type)), dtype(type) {
    std::uniform_real_distribution<float> uniform(low, high);
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = uniform(random);
      if (type == DType::f32) reinterpret_cast<float*>(bytes.data())[i] = x;
      else {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &x, sizeof bits);
        reinterpret_cast<std::uint16_t*>(bytes.data())[i] = static_cast<std::uint16_t>(bits >> 16);
      }
    }
  }
  TensorView view(std::vector<std::int64_t> shape) {
    return {bytes.data(), dtype, Device{}, shape};
  }
};

void run(benchmark::State& state, const Case& c) {
  std::mt19937 random(1);
  std::int64_t T = 0;
  for (const std::int64_t length : c.lengths) T += length;
  const std::int64_t H = c.heads, N = static_cast<std::int64_t>(c.lengths.size());
  Buffer q(c.dtype, T * H * K, random, -1, 1), k(c.dtype, T * H * K, random, -1, 1);
  Buffer v(c.dtype, T * H * V, random, -1, 1), out(c.dtype, T * H * V, random, 0, 1);
  Buffer g(DType::f32, T * H * K, random, -2, 2), beta(DType::f32, T * H, random, -2, 2);
  Buffer pool(DType::f32, N * H * K * V, random, -1, 1);
  const KdaArgs args{.q = q.view({1, T, H, K}),
                     .k = k.view({1, T, H, K}),
                     .v = v.view({1, T, H, V}),
                     .g = g.view({1, T, H, K}),
                     .beta = beta.view({1, T, H}),
                     .out = out.view({1, T, H, V}),
                     .state = pool.view({N, H, V, K})};
  const KdaOptions options{.gate = GateKind::bounded,
                           .beta = BetaKind::sigmoid,
                           .l2norm = true,
                           .state_layout = StateLayout::v_first};
  const Context context{.threads = c.threads, .implementation = c.implementation};
  const auto batch = PackedBatch::from_lengths(c.lengths);
  for (auto _ : state) {
    if (c.op == Op::kda_chunk) kda_chunk(args, batch, options, context);
    else kda_recurrent(args, batch, options, context);
  }
  const auto elements = static_cast<double>(T * H * K * V);
  state.counters["gflops"] =
      benchmark::Counter(7 * elements / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  if (T == N) {  // decode: the state is read and written
    state.counters["gbps"] =
        benchmark::Counter(8 * elements / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  }
}

struct Shape {
  const char* name;
  std::vector<std::int64_t> lengths;
  std::int64_t heads;
  DType dtype = DType::f32;
  bool small = false;  ///< also for the reference
  bool decode = false;
};

const std::vector<Shape> shapes{
    {.name = "T64_H8", .lengths = {64}, .heads = 8, .small = true},
    {.name = "T256_H8", .lengths = {256}, .heads = 8},
    {.name = "T1024_H8", .lengths = {1024}, .heads = 8},
    {.name = "T4096_H8", .lengths = {4096}, .heads = 8},
    {.name = "T4096_H8_bf16", .lengths = {4096}, .heads = 8, .dtype = DType::bf16},
    {.name = "skew6_8192_H4", .lengths = {1300, 547, 2048, 963, 271, 3063}, .heads = 4},
    {.name = "decode_N64_H32",
     .lengths = std::vector<std::int64_t>(64, 1),
     .heads = 32,
     .decode = true},
};

void add(const std::string& name, const Case& c) {
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run(state, c); })
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

std::vector<std::string> able(Op op) {
  std::mt19937 random(1);
  Buffer x(DType::f32, 64, random, -1, 0);
  const KdaArgs args{.q = x.view({1, 1, 1, 8}),
                     .k = x.view({1, 1, 1, 8}),
                     .v = x.view({1, 1, 1, 8}),
                     .g = x.view({1, 1, 1, 8}),
                     .beta = x.view({1, 1, 1}),
                     .out = TensorView(x.bytes.data() + 128, DType::f32, Device{},
                                       std::vector<std::int64_t>{1, 1, 1, 8})};
  std::vector<std::string> names;
  for (const Verdict& verdict : why_kda(op, args, nullptr)) {
    if (!verdict.declined) names.push_back(verdict.implementation);
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const Op op : {Op::kda_recurrent, Op::kda_chunk}) {
    for (const std::string& name : able(op)) {
      for (const int threads : {1, 2}) {
        const bool all = !name.starts_with("ref/");
        for (const Shape& shape : shapes) {
          if (!(all || shape.small) || (shape.decode && op == Op::kda_chunk)) continue;
          std::string label = name;
          label.append("/").append(shape.name).append(threads == 1 ? "/t1" : "/t2");
          add(label, {op, name, shape.lengths, shape.heads, shape.dtype, threads});
        }
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
