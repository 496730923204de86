// SPDX-License-Identifier: Apache-2.0
// Results that `packattn bench --json` wrote.
#include <fstream>

#include <nlohmann/json.hpp>

#include "bench.h"
#include "fault.h"
#include "options.h"

namespace packattn::cli {
namespace {

using json = nlohmann::ordered_json;

void read_case(const json& of, BenchRequest& r) {
  r.op = parse_op(of.at("op").get<std::string>(), std::span(all_ops).first(3));
  r.sequences = of.at("sequences");
  r.heads = of.at("heads");
  r.kv_heads = of.at("kv_heads");
  r.dim = of.at("dim");
  r.dtype = parse_dtype(of.at("dtype").get<std::string>());
  r.causal = of.at("causal");
  r.decode = of.at("decode");
}

BenchRow read_row(const json& of) {
  const double ms = of.at("ms");
  return {.implementation = of.at("implementation"),
          .length = of.at("length"),
          .seconds = 1e-3 * ms,
          .calls = of.at("calls"),
          .flops = 1e6 * ms * of.at("gflops").get<double>(),
          .bytes = 1e6 * ms * of.at("gbps").get<double>()};
}

}  // namespace

BenchResult read_bench_json(const std::string& path, BenchRequest& request) {
  std::ifstream file(path);
  if (!file) fail(Code::file_unreadable, {.argument = path, .value = "it does not open"});
  try {
    const json saved = json::parse(file);
    read_case(saved.at("case"), request);
    const json& ceilings = saved.at("ceilings");
    BenchResult result{.threads = saved.at("meta").at("threads"),
                       .peaks = {},
                       .copy = ceilings.at("copy_gbps"),
                       .read = ceilings.at("read_gbps"),
                       .rows = {}};
    for (const auto& [target, gflops] : ceilings.at("fma_gflops_a_thread").items()) {
      result.peaks.push_back({target, gflops});
    }
    request.lengths.clear();
    for (const json& row : saved.at("rows")) {
      result.rows.push_back(read_row(row));
      request.lengths.push_back(result.rows.back().length);
    }
    if (result.rows.empty()) throw json::other_error::create(500, "it has no rows", &saved);
    return result;
  } catch (const json::exception& error) {
    fail(Code::command_line, {.argument = path, .value = error.what()});
  }
}

}  // namespace packattn::cli
