// SPDX-License-Identifier: Apache-2.0
// Softmax attention on the CPU: every implementation that can run here. Flops are 2 (D + Dv) for
// every pair of a query and a key that it sees, bytes those of K and V read once. Counters: gflops,
// share (of the multiply-add peak times threads, measured in this run), busy_share (the same per
// second of processor time, which other programs on the machine do not change), gbps for decode.
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "packattn/packattn.h"

#include "ceilings.h"

namespace {

using namespace packattn;

struct Case {
  std::string name;
  std::vector<std::int64_t> lengths_q, lengths_k;
  std::int64_t heads_q = 1, heads_k = 1, dim = 128;
  bool causal = false;
  DType dtype = DType::f32;

  bool decode() const { return lengths_q.front() == 1; }
  double pairs() const {
    double sum = 0;
    for (std::size_t n = 0; n < lengths_q.size(); ++n) {
      const auto q = static_cast<double>(lengths_q[n]), k = static_cast<double>(lengths_k[n]);
      sum += q * k - (causal ? q * (q - 1) / 2 : 0);
    }
    return sum;
  }
};

std::vector<Case> cases() {
  const std::vector<std::int64_t> skew{1300, 547, 2048, 963, 271, 3063};
  const auto f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16;
  const std::vector<std::int64_t> each64(64, 256), one64(64, 1), k4096(8, 4096), one8(8, 1);
  return {
      {"full_1x2048_H1", {2048}, {2048}, 1, 1, 128, false, f32},
      {"full_1x2048_H4", {2048}, {2048}, 4, 4, 128, false, f32},
      {"full_1x2048_H4_D64", {2048}, {2048}, 4, 4, 64, false, f32},
      {"full_1x2048_H4", {2048}, {2048}, 4, 4, 128, false, bf16},
      {"full_1x2048_H4", {2048}, {2048}, 4, 4, 128, false, f16},
      {"skew6_8192_causal_H4_2", skew, skew, 4, 2, 128, true, f32},
      {"skew6_8192_causal_H4_2", skew, skew, 4, 2, 128, true, bf16},
      {"many_short_64x256_causal_H4_2", each64, each64, 4, 2, 128, true, f32},
      {"decode_B8_kv4k_H32_8", one8, k4096, 32, 8, 128, true, f32},
      {"decode_B8_kv4k_H32_8", one8, k4096, 32, 8, 128, true, bf16},
      {"decode_B1_kv32k_H32_8", {1}, {32768}, 32, 8, 128, true, bf16},
  };
}

/// Random numbers of one of the three types; a short pattern repeated, since drawing hundreds of
/// millions of normal numbers would take longer than attending to them.
class Buffer {
 public:
  Buffer(DType dtype, std::vector<std::int64_t> shape, std::uint32_t seed)
      : dtype_(dtype), shape_(std::move(shape)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::byte> pattern(size_of(dtype) * 65537);
    for (std::size_t i = 0; i < 65537; ++i) write(pattern.data(), i, normal(random));
    std::size_t bytes = size_of(dtype);
    for (const std::int64_t n : shape_) bytes *= static_cast<std::size_t>(n);
    bytes_.reset(new (std::align_val_t{64}) std::byte[bytes]);
    for (std::size_t i = 0; i < bytes; ++i) bytes_.get()[i] = pattern[i % pattern.size()];
  }
  TensorView view() { return {bytes_.get(), dtype_, Device{}, shape_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  // Truncated to 16 bits, which is good enough for a number that is random anyway.
  void write(std::byte* to, std::size_t i, float x) const {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    auto* half = reinterpret_cast<std::uint16_t*>(to) + i;
    if (dtype_ == DType::f32) reinterpret_cast<float*>(to)[i] = x;
    else if (dtype_ == DType::bf16) *half = static_cast<std::uint16_t>(bits >> 16);
    else
      *half = static_cast<std::uint16_t>((bits >> 16 & 0x8000U) |
                                         (((bits >> 13) - 0x1c000U) & 0x7fffU));
  }

  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::unique_ptr<std::byte, Free> bytes_;
};

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t n : lengths) sum += n;
  return sum;
}

void run(benchmark::State& state, const Case& c, const std::string& implementation, int threads,
         double peak) {
  Buffer q(c.dtype, {total(c.lengths_q), c.heads_q, c.dim}, 1);
  Buffer k(c.dtype, {total(c.lengths_k), c.heads_k, c.dim}, 2);
  Buffer v(c.dtype, {total(c.lengths_k), c.heads_k, c.dim}, 3);
  Buffer out(c.dtype, {total(c.lengths_q), c.heads_q, c.dim}, 4);
  const auto batch = PackedBatch::from_lengths(c.lengths_q, c.lengths_k);
  const AttentionArgs args{q.view(), k.view(), v.view(), out.view()};
  const AttentionOptions options{.causal = c.causal};
  const Context context{.threads = threads, .implementation = implementation};
  const std::size_t before = bench::peak_memory();
  const double start = bench::processor_seconds();
  for (auto _ : state) attention(args, batch, options, context);
  const double busy = bench::processor_seconds() - start;

  const double gflop = 4.0 * static_cast<double>(c.dim * c.heads_q) * c.pairs() / 1e9;
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["gflops"] = benchmark::Counter(gflop, rate);
  if (c.decode()) {
    const auto bytes = static_cast<double>(2 * total(c.lengths_k) * c.heads_k * c.dim) *
                       static_cast<double>(size_of(c.dtype));
    state.counters["gbps"] = benchmark::Counter(bytes / 1e9, rate);
  } else if (peak > 0) {
    state.counters["share"] = benchmark::Counter(gflop / peak / threads, rate);
    state.counters["busy_share"] = gflop * static_cast<double>(state.iterations()) / peak / busy;
  }
  state.counters["memory_mib"] = static_cast<double>(bench::peak_memory() - before) / (1 << 20);
}

/// The rows of the list that run here, with the multiply-add peak of their instruction set.
std::map<std::string, double> implementations_here(const std::vector<bench::FmaPeak>& peaks) {
  std::map<std::string, double> result;
  Buffer x(DType::f32, {1, 1, 8}, 1), out(DType::f32, {1, 1, 8}, 1);
  const auto verdicts = why_attention({x.view(), x.view(), x.view(), out.view()},
                                      PackedBatch::from_lengths(std::vector<std::int64_t>{1}));
  for (const Verdict& verdict : verdicts) {
    if (verdict.declined || !verdict.implementation.starts_with("cpu/")) continue;
    double peak = 0;
    for (const bench::FmaPeak& p : peaks) {
      if (verdict.implementation.ends_with("." + p.target)) peak = p.gflops;
    }
    result[verdict.implementation] = peak;
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto peaks = bench::measure_fma_peaks();
  for (const auto& peak : peaks) {
    benchmark::AddCustomContext("fma_peak_" + peak.target, std::to_string(peak.gflops));
  }
  benchmark::AddCustomContext("copy", std::to_string(bench::measure_copy(processors)));

  for (const auto& [name, peak] : implementations_here(peaks)) {
    for (const Case& c : cases()) {
      for (const int threads : processors > 1 ? std::vector{1, processors} : std::vector{1}) {
        const std::string label =
            name + "/" + c.name + "/" + to_string(c.dtype) + "/t" + std::to_string(threads);
        benchmark::RegisterBenchmark(
            label.c_str(), [=](benchmark::State& state) { run(state, c, name, threads, peak); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
