// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "measure/ceilings.h"

namespace packattn::cli {

/// One implementation on one batch, all its sequences of one length.
struct BenchRow {
  std::string implementation;
  std::int64_t length = 0;
  double seconds = 0;  ///< median of the calls
  int calls = 0;
  double flops = 0;  ///< 2 (D + Dv) a visible pair and query head; 7 K V a token and head of KDA
  double bytes = 0;  ///< each input and output once, a state read and written

  double gflops() const { return flops / seconds / 1e9; }
  double gbps() const { return bytes / seconds / 1e9; }
  double intensity() const { return flops / bytes; }
};

struct BenchResult {
  int threads = 1;
  std::vector<bench::FmaPeak> peaks;  ///< of one thread
  double copy = 0;                    ///< GB/s of all threads, read and written
  double read = 0;                    ///< GB/s of all threads
  std::vector<BenchRow> rows;

  /// The multiply-add peak of an implementation's instruction set, of all threads; 0 if unknown.
  double peak_of(const std::string& implementation) const;
};

/// The memory ceiling of an operation, with its name: attention reads its keys, KDA writes its
/// states back too.
std::pair<std::string, double> memory_ceiling(const BenchRequest& request,
                                              const BenchResult& result);

/// A result as `bench_json` wrote it; sets the case in `request`.
BenchResult read_bench_json(const std::string& path, BenchRequest& request);

/// Text of the outputs of a benchmark.
std::string bench_table(const BenchRequest& request, const BenchResult& result);
std::string bench_json(const BenchRequest& request, const BenchResult& result);
std::string throughput_svg(const BenchRequest& request, const BenchResult& result);
std::string roofline_svg(const BenchRequest& request, const BenchResult& result);

/// "attention, 1 sequence of each length, 8 heads (2 of k and v), D 128, bf16, causal, 2 threads"
std::string bench_title(const BenchRequest& request, int threads);

}  // namespace packattn::cli
