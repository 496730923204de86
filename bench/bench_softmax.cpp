// SPDX-License-Identifier: Apache-2.0
// Softmax attention on the CPU: every implementation that can run here. Flops are 2 (D + Dv) for
// every pair of a query and a key that it sees, bytes those of K and V read once. Counters: gflops,
// share (of the multiply-add peak times threads, measured in this run), busy_share (the same per
// second of processor time, which other programs on the machine do not change); for decode gbps and
// read_share (of what the same threads read from memory).
// Run it in the project's root: the cases are in bench/softmax_cases.json.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <nlohmann/json.hpp>

#include "packattn/packattn.h"

#include "measure/buffer.h"
#include "measure/ceilings.h"

namespace {

using namespace packattn;
using bench::Buffer;
using bench::relative_error;

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
      sum += q * k - (causal ? q * (q - 1) / 2 : 0);  // never more queries than keys
    }
    return sum;
  }
};

DType dtype_named(const std::string& name) {
  return name == "bf16" ? DType::bf16 : name == "fp16" ? DType::f16 : DType::f32;
}

/// The table that record.py shares, so that peers run the same cases.
std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  std::vector<Case> cases;
  for (const auto& entry : nlohmann::json::parse(file)) {
    Case c;
    c.name = entry.at("name");
    const auto q = entry.at("lengths_q").get<std::vector<std::int64_t>>();
    const auto k = entry.value("lengths_k", q);
    for (int i = 0; i < entry.value("repeat", 1); ++i) {
      c.lengths_q.insert(c.lengths_q.end(), q.begin(), q.end());
      c.lengths_k.insert(c.lengths_k.end(), k.begin(), k.end());
    }
    c.heads_q = entry.at("heads_q");
    c.heads_k = entry.at("heads_k");
    c.dim = entry.at("dim");
    c.causal = entry.at("causal");
    for (const std::string dtype : entry.at("dtypes")) {
      c.dtype = dtype_named(dtype);
      cases.push_back(c);
    }
  }
  return cases;
}

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t n : lengths) sum += n;
  return sum;
}

/// What a case is held against: multiply-adds of one thread, reading of all.
struct Ceilings { double gflops = 0, read_gbps = 0; };

void run(benchmark::State& state, const Case& c, const std::string& implementation, int threads,
         const Ceilings& most) {
  Buffer q(c.dtype, {total(c.lengths_q), c.heads_q, c.dim}, 1);
  Buffer k(c.dtype, {total(c.lengths_k), c.heads_k, c.dim}, 2);
  Buffer v(c.dtype, {total(c.lengths_k), c.heads_k, c.dim}, 3);
  Buffer out(c.dtype, {total(c.lengths_q), c.heads_q, c.dim}, 4);
  const auto batch = PackedBatch::from_lengths(c.lengths_q, c.lengths_k);
  AttentionArgs args{q.view(), k.view(), v.view(), out.view()};
  const AttentionOptions options{.causal = c.causal};
  Context context{.threads = threads, .implementation = implementation};
  const double start = bench::processor_seconds();
  for (auto _ : state) attention(args, batch, options, context);
  const double busy = bench::processor_seconds() - start;
  const auto runs = static_cast<double>(state.iterations());

  const double pairs = c.pairs() * static_cast<double>(c.heads_q);
  const double gflop = 4.0 * static_cast<double>(c.dim) * pairs / 1e9;
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["gflops"] = benchmark::Counter(gflop, rate);
  state.counters["busy_ms"] = 1e3 * busy / runs;
  if (c.decode()) {
    const auto bytes = static_cast<double>(2 * total(c.lengths_k) * c.heads_k * c.dim) *
                       static_cast<double>(size_of(c.dtype));
    state.counters["gbps"] = benchmark::Counter(bytes / 1e9, rate);
    state.counters["read_share"] = benchmark::Counter(bytes / 1e9 / most.read_gbps, rate);
  } else if (most.gflops > 0) {
    state.counters["share"] = benchmark::Counter(gflop / most.gflops / threads, rate);
    state.counters["busy_share"] = gflop * runs / most.gflops / busy;
  }
  state.counters["workspace_mib"] =
      static_cast<double>(attention_workspace_bytes(args, batch, options, context)) / (1 << 20);
  if (pairs < 1.8e7) {  // a second or two of the reference
    Buffer expected(DType::f32, {total(c.lengths_q), c.heads_q, c.dim}, 5);
    args.out = expected.view();
    context.implementation = "ref/attention";
    attention(args, batch, options, context);
    state.counters["relerr"] = relative_error(out.floats(), expected.floats());
  }
}

/// By how much one call on a sequence of 8192 raises the process's peak memory, in MiB. A score
/// matrix of it alone would be 256.
double measure_memory(const std::string& implementation, int threads) {
  constexpr std::int64_t length = 8192;
  Buffer x(DType::f32, {length, 1, 64}, 1), out(DType::f32, {length, 1, 64}, 2);
  const auto batch = PackedBatch::from_lengths(std::vector{length});
  const std::size_t before = bench::peak_memory();
  attention({x.view(), x.view(), x.view(), out.view()}, batch, {},
            {.threads = threads, .implementation = implementation});
  return static_cast<double>(bench::peak_memory() - before) / (1 << 20);
}

/// The rows of the list that take a type here, with the multiply-add peak of their instructions.
std::map<std::string, double> implementations_here(DType dtype,
                                                   const std::vector<bench::FmaPeak>& peaks) {
  std::map<std::string, double> result;
  Buffer x(dtype, {1, 1, 8}, 1), out(dtype, {1, 1, 8}, 1);
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

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto table = read_cases("bench/softmax_cases.json");
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto peaks = bench::measure_fma_peaks();
  for (const auto& peak : peaks) {
    benchmark::AddCustomContext("fma_peak_" + peak.target, std::to_string(peak.gflops));
  }
  // Before the copy, whose own buffers would hide any growth.
  for (const auto& [name, peak] : implementations_here(DType::f32, peaks)) {
    benchmark::AddCustomContext("memory_mib_" + name.substr(name.find('.') + 1),
                                std::to_string(measure_memory(name, processors)));
  }
  std::map<int, double> read;  // by threads
  for (const int threads : {1, processors}) {
    const std::string suffix = "_t" + std::to_string(threads);
    read[threads] = bench::measure_read(threads);
    benchmark::AddCustomContext("read" + suffix, std::to_string(read[threads]));
    benchmark::AddCustomContext("copy" + suffix, std::to_string(bench::measure_copy(threads)));
  }

  for (const Case& c : table) {
    for (const auto& [name, peak] : implementations_here(c.dtype, peaks)) {
      for (const int threads : processors > 1 ? std::vector{1, processors} : std::vector{1}) {
        const std::string label =
            name + "/" + c.name + "/" + to_string(c.dtype) + "/t" + std::to_string(threads);
        benchmark::RegisterBenchmark(label.c_str(),
                                     [=, &read](benchmark::State& state) {
                                       run(state, c, name, threads, {peak, read.at(threads)});
                                     })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_softmax: %s\n", error.what());
  return 1;
}
