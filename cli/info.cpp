// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "call.h"
#include "commands.h"

namespace packattn::cli {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> cpu_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) features.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) features.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) features.emplace_back("avx512bw");
#elif defined(__aarch64__)
  features.emplace_back("neon");
#endif
  return features;
}

// What runs here is found by asking about a small call: one sequence of one token.
std::vector<Verdict> verdicts(Op op) {
  static std::array<float, 64> ones{};
  static std::array<float, 64> out{};
  ones.fill(1);
  Call call;
  call.op = op;
  const auto view = [](std::array<float, 64>& data, std::initializer_list<std::int64_t> shape) {
    return TensorView::of(data.data(), shape);
  };
  call.attention = {.q = view(ones, {1, 1, 64}),
                    .k = view(ones, {1, 1, 64}),
                    .v = view(ones, {1, 1, 64}),
                    .out = view(out, {1, 1, 64}),
                    .lse = {}};
  call.kda.q = call.kda.k = call.kda.v = call.kda.g = view(ones, {1, 1, 1, 64});
  call.kda.beta = view(ones, {1, 1, 1});
  call.kda.out = call.gate.out = view(out, {1, 1, 1, 64});
  call.gate.g = view(ones, {1, 1, 1, 64});
  call.gate.A_log = view(ones, {1});
  call.l2norm = {.x = view(ones, {1, 64}), .out = view(out, {1, 64})};
  call.rms_norm.x = call.convolution.x = view(ones, {1, 64});
  call.convolution.weight = view(ones, {64, 1});
  call.rms_norm.out = call.convolution.out = view(out, {1, 64});
  const std::int64_t one = 1;
  const PackedBatch batch = PackedBatch::from_lengths({&one, 1});
  return why(call, &batch);
}

ordered_json about() {
  ordered_json info{{"version", version()},
                    {"compiler", PACKATTN_COMPILER},
                    {"build", PACKATTN_BUILD_TYPE},
                    {"cpu", cpu_features()},
                    {"threads", std::thread::hardware_concurrency()},
                    {"records", records().size()},
                    {"implementations", ordered_json::object()}};
  for (const Op op : all_ops) {
    auto& list = info["implementations"][to_string(op)] = ordered_json::array();
    for (const Verdict& verdict : verdicts(op)) {
      ordered_json row{{"name", verdict.implementation}, {"runs_here", !verdict.declined}};
      if (verdict.declined) row["why_not"] = verdict.declined->message;
      list.push_back(row);
    }
  }
  return info;
}

void print_about(const ordered_json& info) {
  fmt::print("packattn {}\n", info["version"].get<std::string>());
  fmt::print("  build      {}, {}\n", info["build"].get<std::string>(),
             info["compiler"].get<std::string>());
  fmt::print("  processor  {} threads; {}\n", info["threads"].get<unsigned>(),
             fmt::join(info["cpu"].get<std::vector<std::string>>(), " "));
  fmt::print("  errors     {} records\n", info["records"].get<std::size_t>());
  for (const auto& [op, list] : info["implementations"].items()) {
    fmt::print("{}\n", op);
    for (const auto& row : list) {
      const std::string verdict =
          row["runs_here"] ? "runs here" : row["why_not"].get<std::string>();
      fmt::print("  {:<28} {}\n", row["name"].get<std::string>(), verdict);
    }
  }
}

void list_file(const InfoRequest& request) {
  const SafetensorsFile file(request.input);
  if (!request.json) {
    for (const std::string& name : file.names()) {
      const TensorView tensor = file.tensor(name);
      fmt::print("{:<24} {:<6} {}\n", name, to_string(tensor.dtype()), tensor.shape_string());
    }
    for (const auto& [key, value] : file.metadata()) fmt::print("# {} = {}\n", key, value);
    return;
  }
  ordered_json info{{"tensors", ordered_json::object()}, {"metadata", file.metadata()}};
  for (const std::string& name : file.names()) {
    const TensorView tensor = file.tensor(name);
    std::vector<std::int64_t> shape;
    shape.reserve(static_cast<std::size_t>(tensor.rank()));
    for (int dim = 0; dim < tensor.rank(); ++dim) shape.push_back(tensor.size(dim));
    info["tensors"][name] = {{"dtype", to_string(tensor.dtype())}, {"shape", shape}};
  }
  fmt::print("{}\n", info.dump(2));
}

}  // namespace

int info_command(const InfoRequest& request) {
  if (!request.input.empty()) list_file(request);
  else if (request.json) fmt::print("{}\n", about().dump(2));
  else print_about(about());
  return exit_ok;
}

}  // namespace packattn::cli
