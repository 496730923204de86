// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.h"
#include "reference_json.h"

namespace packattn::cli {

/// What the process ends with.
enum ExitCode {
  exit_ok = 0,
  exit_failed = 1,   ///< a file, memory, a device, or packattn itself
  exit_refused = 2,  ///< the call, or the command line, is wrong
};
int exit_code(const std::vector<Fault>& faults);

/// Reports faults: rendered on standard error, or {"faults": [...]} on standard output.
int report(const std::vector<Fault>& faults, bool json);

struct CallRequest {
  std::string input;
  std::string output;  ///< empty: nothing is written
  OptionTexts options;
  bool json = false;
  bool quiet = false;
};
int run_command(const CallRequest& request);
int check_command(const CallRequest& request);
int why_command(const CallRequest& request);

struct BenchRequest {
  Op op = Op::attention;
  std::vector<std::int64_t> lengths{128, 256, 512, 1024, 2048, 4096};
  std::int64_t sequences = 1, heads = 8, kv_heads = 0, dim = 128;  ///< kv_heads 0: as heads
  DType dtype = DType::f32;
  bool causal = false;
  bool decode = false;  ///< one query, or one token, a sequence
  int threads = 0;
  double seconds = 0.3;                      ///< of each measurement
  std::vector<std::string> implementations;  ///< empty: all that run here
  std::string from;                          ///< a result to show again; empty: measure
  std::string plots;                         ///< a folder for SVG files; empty: none
  bool json = false;
  bool quiet = false;
};
int bench_command(BenchRequest request);

struct ExplainRequest {
  std::vector<std::string> words;  ///< none: standard input is read
  bool json = false;
};
int explain_command(const ExplainRequest& request);

struct ErrorsRequest {
  RecordFilter filter;
  bool json = false;
};
int errors_command(const ErrorsRequest& request);

struct ScanRequest {
  std::string folder;  ///< or one source
  std::string repo;    ///< what the records name it; empty: the folder's name
  bool json = false;
};
int scan_command(const ScanRequest& request);

struct ServeRequest {
  std::uint16_t port = 8425;  ///< 0: any that is free
  std::string site;           ///< empty: ./site, or the one that was installed
};
int serve_command(const ServeRequest& request);

struct InfoRequest {
  std::string input;  ///< a file to list; empty: about packattn
  bool json = false;
};
int info_command(const InfoRequest& request);

}  // namespace packattn::cli
