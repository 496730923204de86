// SPDX-License-Identifier: Apache-2.0
// packattn on one GPU: the cases of bench/gpu/cases.json, with boundaries on the device only
// ("packattn", the planner included) and on the host ("packattn_plan", the schedule ready). Device
// events, second-level cache flushed, medians; copy rate of the same run beside them.
//
//   gpu_bench [CASES.json] [OUT.json] [GROUP]...
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>

#include <nlohmann/json.hpp>

#include "packattn/packattn.h"

#include "gpu/device.h"

namespace {

using namespace packattn;
using bench::check;
using bench::DeviceBuffer;
using Json = nlohmann::json;
using Lengths = std::vector<std::int64_t>;

class Results {
 public:
  void add(const std::string& group, const std::string& name, const char* who, double ms,
           const char* unit = nullptr, double per_ms = 0) {
    Json row{{"group", group}, {"case", name}, {"who", who}, {"ms", ms}};
    if (unit != nullptr) row[unit] = per_ms / ms;
    std::printf("%-10s %-26s %-16s %9.4f ms", group.c_str(), name.c_str(), who, ms);
    if (unit != nullptr) std::printf("  %8.1f %s", per_ms / ms, unit);
    std::printf("\n");
    rows.push_back(std::move(row));
  }
  void failed(const std::string& group, const std::string& name, const char* who,
              const std::string& why) {
    std::printf("%-10s %-26s %-16s %s\n", group.c_str(), name.c_str(), who, why.c_str());
    rows.push_back({{"group", group}, {"case", name}, {"who", who}, {"ms", nullptr}, {"why", why}});
  }
  Json rows = Json::array();
};

Lengths lengths_of(const Json& c) {
  Lengths lengths;
  const auto once = c.at("lengths").get<Lengths>();
  for (int i = 0; i < c.value("repeat", 1); ++i) {
    lengths.insert(lengths.end(), once.begin(), once.end());
  }
  return lengths;
}

std::vector<std::int64_t> ends_of(const Lengths& lengths) {
  std::vector<std::int64_t> ends(lengths.size() + 1);
  std::partial_sum(lengths.begin(), lengths.end(), ends.begin() + 1);
  return ends;
}

struct Bench {
  Results& results;
  bench::DeviceTimer time{};

  /// The call with boundaries on the device only and on the host.
  template <class Call>
  void both(const std::string& group, const std::string& name, const PackedBatch& on_device,
            const PackedBatch& on_host, const char* unit, double per_ms, Call&& call) {
    const std::pair<const char*, const PackedBatch*> forms[] = {{"packattn", &on_device},
                                                                {"packattn_plan", &on_host}};
    for (const auto& [who, batch] : forms) {
      try {
        const double ms = time([&] { call(*batch); });
        results.add(group, name, who, ms, unit, per_ms);
      } catch (const std::exception& error) {
        cudaGetLastError();
        results.failed(group, name, who, error.what());
      }
    }
  }

  void limits() {
    const DeviceBuffer a(DType::f32, {1 << 29}, 1), b(DType::f32, {1 << 29}, 2);
    const double ms = time(
        [&] { check(cudaMemcpyAsync(b.data(), a.data(), a.bytes(), cudaMemcpyDeviceToDevice)); });
    results.add("limit", "copy_2GiB", "copy", ms, "gbps", 2e-6 * static_cast<double>(a.bytes()));
  }

  void softmax(const Json& c) {
    const Lengths lengths = lengths_of(c);
    const auto ends = ends_of(lengths);
    const std::int64_t T = ends.back(), H = c.at("heads"), Hk = c.at("key_heads"), D = 128;
    const bool causal = c.at("causal");
    double scores = 0;
    for (const std::int64_t n : lengths) {
      scores += static_cast<double>(causal ? n * (n + 1) / 2 : n * n);
    }
    const DeviceBuffer q(DType::bf16, {T, H, D}, 1), k(DType::bf16, {T, Hk, D}, 2),
        v(DType::bf16, {T, Hk, D}, 3), out(DType::bf16, {T, H, D}, 4), lse(DType::f32, {H, T}, 5);
    const AttentionArgs args{
        .q = q.view(), .k = k.view(), .v = v.view(), .out = out.view(), .lse = lse.view()};
    const DeviceBuffer cu(std::vector<std::int32_t>(ends.begin(), ends.end()));
    both("softmax", c.at("name"), PackedBatch::from_cu_seqlens(cu.view()),
         PackedBatch::from_lengths(lengths), "tflops", 4e-9 * scores * static_cast<double>(H * D),
         [&](const PackedBatch& batch) { attention(args, batch, {.causal = causal}); });
  }

  void decode(const Json& c) {
    constexpr std::int64_t H = 32, Hk = 8, D = 128, page = 64;
    const Lengths lengths = lengths_of(c);
    const auto N = static_cast<std::int64_t>(lengths.size());
    std::int64_t pages = 0, longest = 0;
    for (const std::int64_t n : lengths) {
      pages += (n + page - 1) / page;
      longest = std::max(longest, (n + page - 1) / page);
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    std::vector<std::int32_t> table(static_cast<std::size_t>(N * longest));
    std::size_t next = 0;
    double keys = 0;
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int64_t own = lengths[static_cast<std::size_t>(n)];
      keys += static_cast<double>(own);
      for (std::int64_t i = 0; i < (own + page - 1) / page; ++i) {
        table[static_cast<std::size_t>(n * longest + i)] = order[next++];
      }
    }
    std::vector<std::int32_t> ends(static_cast<std::size_t>(N) + 1);
    std::iota(ends.begin(), ends.end(), 0);
    const std::vector<std::int32_t> held(lengths.begin(), lengths.end());
    const DeviceBuffer q(DType::bf16, {N, H, D}, 1), k(DType::bf16, {pages, page, Hk, D}, 2),
        v(DType::bf16, {pages, page, Hk, D}, 3), out(DType::bf16, {N, H, D}, 4);
    const AttentionArgs args{.q = q.view(), .k = k.view(), .v = v.view(), .out = out.view()};
    const DeviceBuffer cu(ends), seqlens(held), there(table, {N, longest});
    const auto here = [](const std::vector<std::int32_t>& x) { return TensorView::of(x); };
    const TensorView host_table = TensorView::of(table.data(), {N, longest});
    both("decode", c.at("name"), PackedBatch::paged(cu.view(), seqlens.view(), there.view()),
         PackedBatch::paged(here(ends), here(held), host_table), "gbps",
         4e-6 * keys * static_cast<double>(Hk * D),
         [&](const PackedBatch& batch) { attention(args, batch, {.causal = true}); });
  }

  /// Layer inputs of KDA, as a model hands them over: everything bf16, gates and betas raw.
  struct KdaInputs {
    KdaInputs(std::int64_t T, std::int64_t H)
        : q(DType::bf16, {1, T, H, D}, 1),
          k(DType::bf16, {1, T, H, D}, 2),
          v(DType::bf16, {1, T, H, D}, 3),
          g(DType::bf16, {1, T, H, D}, 4),
          beta(DType::bf16, {1, T, H}, 5),
          A_log(DType::f32, {H}, 6, 0.3F),
          dt_bias(DType::f32, {H, D}, 7),
          out(DType::bf16, {1, T, H, D}, 8) {}
    KdaArgs args() const {
      return {.q = q.view(),
              .k = k.view(),
              .v = v.view(),
              .g = g.view(),
              .beta = beta.view(),
              .out = out.view(),
              .A_log = A_log.view(),
              .dt_bias = dt_bias.view()};
    }
    static constexpr std::int64_t D = 128;
    DeviceBuffer q, k, v, g, beta, A_log, dt_bias, out;
  };
  static KdaOptions kda_options() {
    return {.gate = GateKind::bounded,
            .beta = BetaKind::sigmoid,
            .l2norm = true,
            .state_layout = StateLayout::v_first};
  }

  void kda(const Json& c) {
    const Lengths lengths = lengths_of(c);
    const auto ends = ends_of(lengths);
    const std::int64_t T = ends.back(), H = c.at("heads"), D = KdaInputs::D;
    const auto N = static_cast<std::int64_t>(lengths.size());
    const KdaInputs in(T, H);
    const DeviceBuffer initial(DType::f32, {N, H, D, D}, 9, 0.1F),
        final(DType::f32, {N, H, D, D}, 10);
    KdaArgs args = in.args();
    args.initial_state = initial.view();
    args.final_state = final.view();
    const double bytes =
        static_cast<double>(T * H * (D * 10 + 2)) + 2 * static_cast<double>(initial.bytes());
    const DeviceBuffer cu(ends);
    both("kda", c.at("name"), PackedBatch::from_cu_seqlens(cu.view()),
         PackedBatch::from_lengths(lengths), "gbps", 1e-6 * bytes,
         [&](const PackedBatch& batch) { kda_chunk(args, batch, kda_options()); });
  }

  void kda_decode(const Json& c) {
    const std::int64_t N = c.at("sequences"), H = c.at("heads"), slots = c.at("slots");
    const std::int64_t D = KdaInputs::D;
    const KdaInputs in(N, H);
    const DeviceBuffer pool(DType::f32, {slots, H, D, D}, 9, 0.1F);
    std::vector<std::int32_t> order(static_cast<std::size_t>(slots));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    order.resize(static_cast<std::size_t>(N));
    const DeviceBuffer slot(order);
    std::vector<std::int64_t> ends(static_cast<std::size_t>(N) + 1);
    std::iota(ends.begin(), ends.end(), 0);
    const DeviceBuffer cu(ends);
    KdaArgs args = in.args();
    args.state = pool.view();
    args.slots = slot.view();
    const double bytes = 8 * static_cast<double>(N * H * D * D);
    const std::string name = c.at("name");
    both("kdadecode", name, PackedBatch::from_cu_seqlens(cu.view()),
         PackedBatch::from_lengths(Lengths(static_cast<std::size_t>(N), 1)), "gbps", 1e-6 * bytes,
         [&](const PackedBatch& batch) { kda_recurrent(args, batch, kda_options()); });
    // Without boundaries and slots: rows of [N, 1, H, D], states in order.
    const auto rows = [&](const TensorView& x) {
      std::vector<std::int64_t> shape{N, 1};
      for (int dim = 2; dim < x.rank(); ++dim) shape.push_back(x.size(dim));
      return TensorView(x.data(), x.dtype(), x.device(), shape);
    };
    for (TensorView* x : {&args.q, &args.k, &args.v, &args.g, &args.beta, &args.out}) *x = rows(*x);
    const std::int64_t shape[] = {N, H, D, D};
    args.state = {pool.data(), DType::f32, {DeviceType::cuda, 0}, shape};
    args.slots = {};
    results.add("kdadecode", name, "packattn_rows",
                time([&] { kda_recurrent(args, kda_options()); }), "gbps", 1e-6 * bytes);
  }

  /// The layers beside KDA, on the tokens of one prefill: bound by memory, so GB/s is the mark.
  void layers() {
    const std::int64_t T = 8192, H = 96, D = 128;
    const DeviceBuffer x(DType::bf16, {1, T, H, D}, 1), gate(DType::bf16, {1, T, H, D}, 2),
        out(DType::bf16, {1, T, H, D}, 3), out32(DType::f32, {1, T, H, D}, 4),
        weight(DType::bf16, {D}, 5), taps(DType::bf16, {H * D, 4}, 6), A_log(DType::f32, {H}, 7),
        dt_bias(DType::f32, {H, D}, 8);
    const auto row = [&](const char* name, const DeviceBuffer& to, int reads, auto&& call) {
      const double bytes = reads * static_cast<double>(x.bytes()) + static_cast<double>(to.bytes());
      results.add("layers", name, "packattn", time(call), "gbps", 1e-6 * bytes);
    };
    row("l2norm", out, 1, [&] { l2norm({.x = x.view(), .out = out.view()}); });
    row("gated_rms_norm", out, 2, [&] {
      gated_rms_norm(
          {.x = x.view(), .gate = gate.view(), .weight = weight.view(), .out = out.view()});
    });
    row("kda_gate", out32, 1, [&] {
      kda_gate(
          {.g = x.view(), .A_log = A_log.view(), .dt_bias = dt_bias.view(), .out = out32.view()},
          {.gate = GateKind::bounded});
    });
    const auto flat = [&](const DeviceBuffer& b) {
      const std::int64_t shape[] = {T, H * D};
      return TensorView(b.data(), DType::bf16, {DeviceType::cuda, 0}, shape);
    };
    const auto batch = PackedBatch::from_lengths(Lengths{1300, 547, 2048, 963, 271, 3063});
    row("short_convolution", out, 1, [&] {
      short_convolution({.x = flat(x), .weight = taps.view(), .out = flat(out)}, batch,
                        {.silu = true});
    });
  }

  /// What boundaries on the device cost, on a batch whose work is next to nothing.
  void planner() {
    for (const std::int64_t N : {1, 64, 1024}) {
      const std::int64_t D = 64;
      const DeviceBuffer q(DType::bf16, {N, 1, D}, 1), out(DType::bf16, {N, 1, D}, 2);
      const AttentionArgs args{.q = q.view(), .k = q.view(), .v = q.view(), .out = out.view()};
      std::vector<std::int32_t> ends(static_cast<std::size_t>(N) + 1);
      std::iota(ends.begin(), ends.end(), 0);
      const DeviceBuffer cu(ends);
      const auto on_device = PackedBatch::from_cu_seqlens(cu.view());
      const auto on_host = PackedBatch::from_lengths(Lengths(static_cast<std::size_t>(N), 1));
      const double with = time([&] { attention(args, on_device); });
      const double without = time([&] { attention(args, on_host); });
      results.add("planner", std::to_string(N) + "_sequences", "packattn", with - without);
      results.add("planner", std::to_string(N) + "_sequences_call", "packattn_plan", without);
    }
  }

  /// Host time of a call that only enqueues, the schedule being ready.
  void host() {
    const KdaInputs in(64, 4);
    const auto batch = PackedBatch::from_lengths(Lengths(64, 1));
    const DeviceBuffer q(DType::bf16, {64, 4, 128}, 1), out(DType::bf16, {64, 4, 128}, 2);
    const AttentionArgs args{.q = q.view(), .k = q.view(), .v = q.view(), .out = out.view()};
    const auto each = [&](const char* name, const std::function<void()>& call) {
      constexpr int rounds = 9, calls = 200;
      std::vector<double> times;
      for (int round = 0; round < rounds; ++round) {
        check(cudaDeviceSynchronize());
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < calls; ++i) call();
        const std::chrono::duration<double, std::milli> spent =
            std::chrono::steady_clock::now() - start;
        times.push_back(spent.count() / calls);
      }
      std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
      results.add("host", name, "packattn_plan", times[rounds / 2]);
    };
    each("attention_64_sequences", [&] { attention(args, batch); });
    each("kda_recurrent_64_sequences", [&] { kda_recurrent(in.args(), batch, kda_options()); });
    each("empty_memset", [&] { check(cudaMemsetAsync(out.data(), 0, 16)); });
  }
};

/// The first call of each operation in this process, after the context exists.
void first_calls(Results& results) {
  check(cudaFree(nullptr));
  const auto timed = [&](const char* name, const std::function<void()>& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    check(cudaDeviceSynchronize());
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    results.add("first_call", name, "packattn", spent.count());
  };
  const DeviceBuffer q(DType::bf16, {64, 4, 128}, 1), out(DType::bf16, {64, 4, 128}, 2);
  const Bench::KdaInputs in(64, 4);
  timed("attention", [&] {
    attention({.q = q.view(), .k = q.view(), .v = q.view(), .out = out.view()},
              PackedBatch::from_lengths(Lengths{64}));
  });
  timed("kda_recurrent", [&] { kda_recurrent(in.args(), Bench::kda_options()); });
  timed("kda_chunk", [&] { kda_chunk(in.args(), Bench::kda_options()); });
}

int run(const std::vector<std::string>& arguments) {
  const Json cases = Json::parse(std::ifstream(arguments.at(0)));
  const std::set<std::string> only(arguments.begin() + 2, arguments.end());
  const auto wanted = [&](const char* group) { return only.empty() || only.contains(group); };
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0));
  Results results;
  if (wanted("first_call")) first_calls(results);
  Bench bench{results};
  if (wanted("limit")) bench.limits();
  if (wanted("layers")) bench.layers();
  if (wanted("planner")) bench.planner();
  if (wanted("host")) bench.host();
  const auto each = [&](const char* group, void (Bench::*one)(const Json&)) {
    if (!wanted(group)) return;
    for (const Json& c : cases.at(group)) (bench.*one)(c);
  };
  each("kdadecode", &Bench::kda_decode);
  each("kda", &Bench::kda);
  each("decode", &Bench::decode);
  each("softmax", &Bench::softmax);
  const auto today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date{today};
  char text[16];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  const Json meta{{"date", text}, {"device", device.name}, {"versions", {{"packattn", version()}}}};
  std::ofstream(arguments.at(1)) << Json{{"meta", meta}, {"rows", results.rows}}.dump(1) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: gpu_bench CASES.json OUT.json [GROUP]...\n");
    return 2;
  }
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
}
