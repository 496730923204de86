// SPDX-License-Identifier: Apache-2.0
// `packattn bench`: how fast each implementation is here, on sequences of several lengths.
#include "bench.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "fault.h"
#include "measure/buffer.h"
#include "progress.h"

namespace packattn::cli {
namespace {

using bench::Buffer;
using Lengths = std::vector<std::int64_t>;

/// One batch with its memory: what an implementation is asked about, and what it runs on.
struct Workload {
  double flops = 0, bytes = 0;
  std::vector<Buffer> memory;
  std::function<std::vector<Verdict>()> why;
  std::function<void(const Context&)> run;
};

double total_bytes(const std::vector<Buffer>& memory) {
  double sum = 0;
  for (const Buffer& b : memory) sum += static_cast<double>(b.bytes());
  return sum;
}

Workload attention_workload(const BenchRequest& r, std::int64_t length) {
  const std::int64_t N = r.sequences, queries = r.decode ? 1 : length;
  Workload w;
  w.memory.emplace_back(r.dtype, Lengths{N * queries, r.heads, r.dim}, 1);
  w.memory.emplace_back(r.dtype, Lengths{N * length, r.kv_heads, r.dim}, 2);
  w.memory.emplace_back(r.dtype, Lengths{N * length, r.kv_heads, r.dim}, 3);
  w.memory.emplace_back(r.dtype, Lengths{N * queries, r.heads, r.dim}, 4);
  const auto batch = PackedBatch::from_lengths(Lengths(static_cast<std::size_t>(N), queries),
                                               Lengths(static_cast<std::size_t>(N), length));
  const auto keys = static_cast<double>(length), rows = static_cast<double>(queries);
  const double pairs = rows * keys - (r.causal ? rows * (rows - 1) / 2 : 0);
  w.flops = 4.0 * static_cast<double>(r.dim * r.heads * N) * pairs;
  w.bytes = total_bytes(w.memory);
  AttentionArgs args{w.memory[0].view(), w.memory[1].view(), w.memory[2].view(),
                     w.memory[3].view()};
  const AttentionOptions options{.causal = r.causal};
  w.why = [=] { return why_attention(args, batch, options); };
  w.run = [=](const Context& c) { attention(args, batch, options, c); };
  return w;
}

Workload kda_workload(const BenchRequest& r, std::int64_t length) {
  const std::int64_t N = r.sequences, each = r.decode ? 1 : length, T = N * each;
  const std::int64_t H = r.kv_heads, HV = r.heads, D = r.dim;
  Workload w;
  w.memory.emplace_back(r.dtype, Lengths{1, T, H, D}, 1);
  w.memory.emplace_back(r.dtype, Lengths{1, T, H, D}, 2);
  w.memory.emplace_back(r.dtype, Lengths{1, T, HV, D}, 3);
  w.memory.emplace_back(DType::f32, Lengths{1, T, HV, D}, 4);
  w.memory.emplace_back(DType::f32, Lengths{1, T, HV}, 5);
  w.memory.emplace_back(r.dtype, Lengths{1, T, HV, D}, 6);
  w.memory.emplace_back(DType::f32, Lengths{N, HV, D, D}, 7);
  const auto batch = PackedBatch::from_lengths(Lengths(static_cast<std::size_t>(N), each));
  w.flops = 7.0 * static_cast<double>(T * HV * D * D);
  w.bytes = total_bytes(w.memory) + static_cast<double>(w.memory[6].bytes());  // read and written
  const KdaArgs args{.q = w.memory[0].view(),
                     .k = w.memory[1].view(),
                     .v = w.memory[2].view(),
                     .g = w.memory[3].view(),
                     .beta = w.memory[4].view(),
                     .out = w.memory[5].view(),
                     .state = w.memory[6].view()};
  const KdaOptions options{.gate = GateKind::bounded,
                           .beta = BetaKind::sigmoid,
                           .l2norm = true,
                           .state_layout = StateLayout::v_first};
  w.why = [=, op = r.op] { return why_kda(op, args, &batch, options); };
  w.run = [=, op = r.op](const Context& c) {
    op == Op::kda_chunk ? kda_chunk(args, batch, options, c)
                        : kda_recurrent(args, batch, options, c);
  };
  return w;
}

double seconds_now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

BenchRow measure(const Workload& w, const Context& context, double seconds) {
  w.run(context);  // memory, threads and the batch's schedule are there before the clock starts
  std::vector<double> times;
  const double start = seconds_now();
  double before = start;
  do {
    w.run(context);
    const double now = seconds_now();
    times.push_back(now - before);
    before = now;
  } while (before - start < seconds);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return {.implementation = context.implementation,
          .seconds = *middle,
          .calls = static_cast<int>(times.size()),
          .flops = w.flops,
          .bytes = w.bytes};
}

/// The named ones, whether they can or not, so that a refusal is seen; else what runs here, without
/// the reference, which takes minutes where the others take milliseconds.
std::vector<std::string> implementations_for(const BenchRequest& request, const Workload& w) {
  if (!request.implementations.empty()) return request.implementations;
  std::vector<std::string> names;
  for (const Verdict& v : w.why()) {
    if (!v.declined && !v.implementation.starts_with("ref/")) names.push_back(v.implementation);
  }
  return names;
}

BenchResult measure_all(const BenchRequest& request) {
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  BenchResult result{.threads = request.threads > 0 ? request.threads : processors,
                     .peaks = bench::measure_fma_peaks(),
                     .copy = 0,
                     .read = 0,
                     .rows = {}};
  result.copy = bench::measure_copy(result.threads);
  result.read = bench::measure_read(result.threads);
  Progress progress(!request.quiet);
  std::int64_t done = 0;
  for (const std::int64_t length : request.lengths) {
    const Workload w = request.op == Op::attention ? attention_workload(request, length)
                                                   : kda_workload(request, length);
    const auto names = implementations_for(request, w);
    for (const std::string& name : names) {
      progress(done++, std::ssize(request.lengths) * std::ssize(names));
      const Context context{.threads = result.threads, .implementation = name};
      result.rows.push_back(measure(w, context, request.seconds));
      result.rows.back().length = length;
    }
  }
  return result;
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) {
    fail(Code::file_unwritable,
         {.argument = path.string(), .value = std::generic_category().message(errno)});
  }
}

}  // namespace

double BenchResult::peak_of(const std::string& implementation) const {
  for (const bench::FmaPeak& p : peaks) {
    if (implementation.ends_with("." + p.target)) return p.gflops * threads;
  }
  return 0;
}

int bench_command(BenchRequest request) {
  const std::filesystem::path folder = request.plots;
  if (!request.plots.empty()) {  // before minutes of measuring
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail(Code::file_unwritable, {.argument = request.plots, .value = error.message()});
  }
  const BenchResult result =
      request.from.empty() ? measure_all(request) : read_bench_json(request.from, request);
  fmt::print("{}", request.json ? bench_json(request, result) : bench_table(request, result));
  if (request.plots.empty()) return exit_ok;
  write(folder / "throughput.svg", throughput_svg(request, result));
  write(folder / "roofline.svg", roofline_svg(request, result));
  if (!request.json) fmt::print("wrote throughput.svg and roofline.svg to {}\n", request.plots);
  return exit_ok;
}

}  // namespace packattn::cli
