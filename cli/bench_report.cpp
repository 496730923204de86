// SPDX-License-Identifier: Apache-2.0
// What a benchmark prints and draws.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "chart.h"

namespace packattn::cli {
namespace {

using nlohmann::ordered_json;

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

/// The implementations in the order of their first row.
std::vector<std::string> names_of(const BenchResult& result) {
  std::vector<std::string> names;
  for (const BenchRow& row : result.rows) {
    if (std::ranges::find(names, row.implementation) == names.end()) {
      names.push_back(row.implementation);
    }
  }
  return names;
}

template <class Point>
std::vector<std::pair<double, double>> points_of(const BenchResult& result, const std::string& name,
                                                 Point&& point) {
  std::vector<std::pair<double, double>> points;
  for (const BenchRow& row : result.rows) {
    if (row.implementation == name) points.push_back(point(row));
  }
  return points;
}

}  // namespace

std::pair<std::string, double> memory_ceiling(const BenchRequest& request,
                                              const BenchResult& result) {
  if (request.op == Op::attention) return {"read", result.read};
  return {"copy", result.copy};
}

std::string bench_title(const BenchRequest& r, int threads) {
  const std::string sequences =
      r.sequences == 1 ? "1 sequence" : fmt::format("{} sequences", r.sequences);
  return fmt::format("{}, {} of each length, {} heads ({} of {}), D {}, {}{}{}, {} thread{}",
                     to_string(r.op), sequences, r.heads, r.kv_heads,
                     r.op == Op::attention ? "k and v" : "q and k", r.dim, to_string(r.dtype),
                     r.causal && r.op == Op::attention ? ", causal" : "",
                     r.decode ? ", one token each" : "", threads, threads == 1 ? "" : "s");
}

std::string bench_table(const BenchRequest& request, const BenchResult& result) {
  std::string text = bench_title(request, result.threads) + "\nceilings of all threads: ";
  for (const bench::FmaPeak& p : result.peaks) {
    text += fmt::format("{} {:.0f} GFLOP/s, ", p.target, p.gflops * result.threads);
  }
  const auto [memory, gbps] = memory_ceiling(request, result);
  text += fmt::format("read {:.1f} GB/s, copy {:.1f} GB/s\n\n", result.read, result.copy);
  text += fmt::format("{:>8}  {:<30} {:>11} {:>9} {:>8} {:>8} {:>8}\n", "length", "implementation",
                      "ms", "GFLOP/s", "of peak", "GB/s", "of " + memory);
  for (const BenchRow& row : result.rows) {
    const double peak = result.peak_of(row.implementation);
    const std::string share =
        peak > 0 ? fmt::format("{:.0f} %", 100 * row.gflops() / peak) : std::string("-");
    text += fmt::format("{:>8}  {:<30} {:>11.4f} {:>9.1f} {:>8} {:>8.2f} {:>6.0f} %\n", row.length,
                        row.implementation, 1e3 * row.seconds, row.gflops(), share, row.gbps(),
                        100 * row.gbps() / gbps);
  }
  return text;
}

std::string bench_json(const BenchRequest& r, const BenchResult& result) {
  ordered_json json{{"meta",
                     {{"date", today()},
                      {"device", processor_name()},
                      {"packattn", version()},
                      {"compiler", PACKATTN_COMPILER},
                      {"build", PACKATTN_BUILD_TYPE},
                      {"threads", result.threads}}},
                    {"case",
                     {{"op", to_string(r.op)},
                      {"sequences", r.sequences},
                      {"heads", r.heads},
                      {"kv_heads", r.kv_heads},
                      {"dim", r.dim},
                      {"dtype", to_string(r.dtype)},
                      {"causal", r.causal},
                      {"decode", r.decode}}},
                    {"ceilings", {{"copy_gbps", result.copy}, {"read_gbps", result.read}}},
                    {"rows", ordered_json::array()}};
  for (const bench::FmaPeak& p : result.peaks) {
    json["ceilings"]["fma_gflops_a_thread"][p.target] = p.gflops;
  }
  for (const BenchRow& row : result.rows) {
    json["rows"].push_back({{"implementation", row.implementation},
                            {"length", row.length},
                            {"ms", 1e3 * row.seconds},
                            {"calls", row.calls},
                            {"gflops", row.gflops()},
                            {"gbps", row.gbps()},
                            {"flops_per_byte", row.intensity()}});
  }
  return json.dump(2) + "\n";
}

std::string throughput_svg(const BenchRequest& request, const BenchResult& result) {
  const bool bytes = request.decode;
  Chart chart{.title = bench_title(request, result.threads),
              .x_label = "tokens a sequence",
              .y_label = bytes ? "GB/s" : "GFLOP/s",
              .log_y = false,
              .series = {}};
  for (const std::string& name : names_of(result)) {
    chart.series.push_back({name, points_of(result, name, [&](const BenchRow& row) {
                              return std::pair(static_cast<double>(row.length),
                                               bytes ? row.gbps() : row.gflops());
                            })});
  }
  const auto [low, high] = std::ranges::minmax(request.lengths);
  const auto ceiling = [&](const std::string& name, double value) {
    chart.series.push_back(
        {.name = name,
         .points = {{static_cast<double>(low), value}, {static_cast<double>(high), value}},
         .ceiling = true});
  };
  if (bytes) std::apply(ceiling, memory_ceiling(request, result));
  for (const bench::FmaPeak& p : result.peaks) {
    if (!bytes) ceiling(p.target + " multiply-adds", p.gflops * result.threads);
  }
  return svg(chart);
}

std::string roofline_svg(const BenchRequest& request, const BenchResult& result) {
  Chart chart{.title = bench_title(request, result.threads),
              .x_label = "flops a byte of the arguments",
              .y_label = "GFLOP/s",
              .log_y = true,
              .series = {}};
  double low = 1, high = 64;
  for (const BenchRow& row : result.rows) {
    low = std::min(low, row.intensity());
    high = std::max(high, row.intensity());
  }
  for (const std::string& name : names_of(result)) {
    chart.series.push_back({.name = name,
                            .points = points_of(result, name,
                                                [](const BenchRow& row) {
                                                  return std::pair(row.intensity(), row.gflops());
                                                }),
                            .ceiling = false,
                            .marks_only = true});
  }
  const auto [memory, gbps] = memory_ceiling(request, result);
  for (const bench::FmaPeak& p : result.peaks) {
    const double peak = p.gflops * result.threads, ridge = peak / gbps;
    chart.series.push_back({.name = memory + ", then " + p.target,
                            .points = {{low, std::min(peak, low * gbps)},
                                       {std::max(low, ridge), peak},
                                       {std::max(high, ridge), peak}},
                            .ceiling = true});
  }
  return svg(chart);
}

}  // namespace packattn::cli
