// SPDX-License-Identifier: Apache-2.0
// KDA on the CPU: every implementation that can run here. Flops are those of the recurrence, 7 K V
// per token and value head (decay 1, u 2, write 2, read 2), for the chunked form too, so that rates
// compare as times do; bytes of a decode step are the state's, read and written. Counters: gflops,
// share (of the multiply-add peak times threads, measured in this run), busy_share (the same per
// second of processor time, which other programs on the machine do not change), gbps for decode.
// Run it in the project's root: the cases are in bench/kda_cases.json.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
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

constexpr std::int64_t K = 128, V = 128;

struct Case {
  std::string name;
  std::vector<std::int64_t> lengths;
  std::int64_t heads = 1;
  DType dtype = DType::f32;

  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const std::int64_t n : lengths) sum += n;
    return sum;
  }
  bool decode() const { return lengths.front() == 1; }
};

/// One row of a list, with the multiply-add peak of its instruction set.
struct Row {
  Op op;
  std::string name;
  double peak = 0;
};

/// The table that record_kda.py shares, so that peers run the same cases.
std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  std::vector<Case> cases;
  for (const auto& entry : nlohmann::json::parse(file)) {
    Case c{.name = entry.at("name"), .lengths = {}, .heads = entry.at("heads")};
    const auto lengths = entry.at("lengths").get<std::vector<std::int64_t>>();
    for (int i = 0; i < entry.value("repeat", 1); ++i) {
      c.lengths.insert(c.lengths.end(), lengths.begin(), lengths.end());
    }
    for (const std::string dtype : entry.at("dtypes")) {
      c.dtype = dtype == "bf16" ? DType::bf16 : DType::f32;
      cases.push_back(c);
    }
  }
  return cases;
}

void run(benchmark::State& state, const Case& c, const Row& row, int threads) {
  const std::int64_t T = c.tokens(), H = c.heads, N = std::ssize(c.lengths);
  Buffer q(c.dtype, {1, T, H, K}, 1), k(c.dtype, {1, T, H, K}, 2), v(c.dtype, {1, T, H, V}, 3);
  Buffer g(DType::f32, {1, T, H, K}, 4), beta(DType::f32, {1, T, H}, 5);
  Buffer out(c.dtype, {1, T, H, V}, 6), pool(DType::f32, {N, H, V, K}, 7);
  const KdaArgs args{.q = q.view(),
                     .k = k.view(),
                     .v = v.view(),
                     .g = g.view(),
                     .beta = beta.view(),
                     .out = out.view(),
                     .state = pool.view()};
  const KdaOptions options{.gate = GateKind::bounded,
                           .beta = BetaKind::sigmoid,
                           .l2norm = true,
                           .state_layout = StateLayout::v_first};
  const Context context{.threads = threads, .implementation = row.name};
  const auto batch = PackedBatch::from_lengths(c.lengths);
  const double start = bench::processor_seconds();
  for (auto _ : state) {
    if (row.op == Op::kda_chunk) kda_chunk(args, batch, options, context);
    else kda_recurrent(args, batch, options, context);
  }
  const double busy = bench::processor_seconds() - start;
  const auto runs = static_cast<double>(state.iterations());

  const auto elements = static_cast<double>(T * H * K * V);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  const double gflop = 7 * elements / 1e9;
  state.counters["gflops"] = benchmark::Counter(gflop, rate);
  state.counters["busy_ms"] = 1e3 * busy / runs;
  if (c.decode()) {
    state.counters["gbps"] = benchmark::Counter(8 * elements / 1e9, rate);
  } else {
    state.counters["share"] = benchmark::Counter(gflop / row.peak / threads, rate);
    state.counters["busy_share"] = gflop * runs / row.peak / busy;
  }
  state.counters["workspace_mib"] =
      static_cast<double>(kda_workspace_bytes(row.op, args, &batch, options, context)) / (1 << 20);
}

/// The rows that take a type here.
std::vector<Row> rows_here(DType dtype, const std::vector<bench::FmaPeak>& peaks) {
  Buffer x(dtype, {1, 1, 1, 8}, 1), beta(DType::f32, {1, 1, 1}, 2);
  Buffer out(dtype, {1, 1, 1, 8}, 3);
  const KdaArgs args{.q = x.view(),
                     .k = x.view(),
                     .v = x.view(),
                     .g = x.view(),
                     .beta = beta.view(),
                     .out = out.view()};
  std::vector<Row> rows;
  for (const Op op : {Op::kda_recurrent, Op::kda_chunk}) {
    for (const Verdict& verdict : why_kda(op, args, nullptr)) {
      if (verdict.declined || !verdict.implementation.starts_with("cpu/")) continue;
      Row row{op, verdict.implementation};
      for (const bench::FmaPeak& p : peaks) {
        if (row.name.ends_with("." + p.target)) row.peak = p.gflops;
      }
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) try {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto table = read_cases("bench/kda_cases.json");
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto peaks = bench::measure_fma_peaks();
  for (const auto& peak : peaks) {
    benchmark::AddCustomContext("fma_peak_" + peak.target, std::to_string(peak.gflops));
  }
  benchmark::AddCustomContext("copy", std::to_string(bench::measure_copy(processors)));
  for (const Case& c : table) {
    for (const Row& row : rows_here(c.dtype, peaks)) {
      if (c.decode() && row.op == Op::kda_chunk) continue;
      for (const int threads : processors > 1 ? std::vector{1, processors} : std::vector{1}) {
        std::string label = row.name;
        label.append("/").append(c.name).append("/").append(to_string(c.dtype));
        label.append("/t").append(std::to_string(threads));
        benchmark::RegisterBenchmark(label.c_str(),
                                     [=](benchmark::State& state) { run(state, c, row, threads); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_kda: %s\n", error.what());
  return 1;
}
