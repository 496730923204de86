// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "packattn/version.h"

#include "commands.h"
#include "fault.h"

namespace packattn::cli {
namespace {

constexpr const char* tensor_help =
    "The file is in safetensors form and holds the tensors under the names of the arguments: q, k, "
    "v, cu_seqlens_q (or cu_seqlens), cu_seqlens_k, lengths_q, seqlens_k, block_table, ...; for "
    "KDA "
    "g, beta, A_log, dt_bias, state, initial_state, slots, ...; for its neighbours x, weight, "
    "bias, "
    "gate, residual, with --op. Options may also stand in its "
    "metadata, as packattn.<option>.";
constexpr const char* description_help =
    " A .json file describes a call without its data: {\"tensors\": {\"q\": {\"dtype\": \"bf16\", "
    "\"shape\": [20, 4, 64]}, ..., \"cu_seqlens_q\": [0, 12, 20]}, \"options\": {\"causal\": "
    "true}}.";

class CommandLine {
 public:
  CommandLine() {
    app_.set_version_flag("--version", std::string(version()));
    app_.require_subcommand(1);
    app_.footer(
        "Exit status: 0 done; 1 a file, memory or a device failed; 2 the call or the command "
        "line is wrong.");
    add_run();
    add_check();
    add_why();
    add_bench();
    add_explain();
    add_errors();
    add_serve();
    add_info();
  }

  int operator()(int count, char** arguments) {
    try {
      app_.parse(count, arguments);
    } catch (const CLI::CallForHelp& help) {
      return app_.exit(help);
    } catch (const CLI::CallForAllHelp& help) {
      return app_.exit(help);
    } catch (const CLI::CallForVersion& asked) {
      return app_.exit(asked);
    } catch (const CLI::ParseError& error) {
      fail(Code::command_line, {.argument = "packattn", .value = error.what()});
    }
    return chosen_();
  }

 private:
  CLI::App* add(const std::string& name, const std::string& about, std::function<int()> command) {
    CLI::App* added = app_.add_subcommand(name, about);
    added->callback([this, command = std::move(command)] { chosen_ = command; });
    return added;
  }

  CLI::App* add_call(const std::string& name, const std::string& about,
                     std::function<int()> command) {
    CLI::App* added = add(name, about, std::move(command));
    added->add_option("file", call_.input, "safetensors file with the tensors of the call")
        ->required();
    added->add_flag("--json", call_.json, "result, or faults, as JSON");
    add_option_flags(*added, call_.options);
    return added;
  }

  void add_run() {
    CLI::App* run = add_call(
        "run", "Compute packed attention, KDA or a neighbour of it on the tensors of a file",
        [this] { return run_command(call_); });
    run->add_option("-o,--out,--output", call_.output, "safetensors file for the results")
        ->check([](const std::string& path) {
          return path.empty() ? "the name of the output is empty" : "";
        });
    run->add_flag("--quiet", call_.quiet, "no progress, no summary");
    run->footer(tensor_help);
  }
  void add_check() {
    add_call("check", "List every fault of a call, without computing anything", [this] {
      return check_command(call_);
    })->footer(std::string(tensor_help) + description_help);
  }
  void add_why() {
    add_call("why", "Say of each implementation whether it takes a call, or why not", [this] {
      return why_command(call_);
    })->footer(std::string(tensor_help) + description_help);
  }
  void add_bench() {
    CLI::App* bench = add("bench", "Measure the implementations that run here", [this] {
      if (bench_.kv_heads == 0) bench_.kv_heads = bench_.heads;
      return bench_command(bench_);
    });
    const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 32);
    bench->add_option_function<std::string>(
        "--op",
        [this](const std::string& name) {
          bench_.op = parse_op(name, std::span(all_ops).first(3));
        },
        "attention (default), kda_recurrent or kda_chunk");
    bench->add_option("--lengths", bench_.lengths, "tokens of a sequence, with commas")
        ->delimiter(',')
        ->check(positive);
    bench->add_option("--sequences", bench_.sequences, "sequences a batch")->check(positive);
    bench->add_option("--heads", bench_.heads, "heads of q, or of v in KDA")->check(positive);
    bench->add_option("--kv-heads", bench_.kv_heads, "heads of k and v, or of q and k in KDA")
        ->check(positive);
    bench->add_option("--dim", bench_.dim, "head size")->check(positive);
    bench->add_option_function<std::string>(
        "--dtype", [this](const std::string& name) { bench_.dtype = parse_dtype(name); },
        "fp32 (default), fp16 or bf16");
    bench->add_flag("--causal", bench_.causal, "a query sees no later key");
    bench->add_flag("--decode", bench_.decode, "one query, or token, a sequence");
    bench->add_option("--threads", bench_.threads, "threads (default: all)")
        ->check(CLI::Range(0, 1 << 16));
    bench->add_option("--seconds", bench_.seconds, "length of each measurement")
        ->check(CLI::Range(0.0, 3600.0));
    bench->add_option("--implementation", bench_.implementations, "only these, by name");
    bench->add_option("--plots", bench_.plots, "folder for throughput.svg and roofline.svg");
    CLI::Option* json = bench->add_flag("--json", bench_.json, "the result as JSON");
    bench->add_flag("--quiet", bench_.quiet, "no progress");
    bench->add_option("--from", bench_.from, "show and draw a result of --json; measure nothing")
        ->excludes(json);
    bench->footer(
        "Times are medians of whole calls. The peaks are those of fp32 multiply-adds from "
        "registers, of reading memory beyond the caches and of a copy there, measured in the same "
        "run.");
  }
  void add_explain() {
    CLI::App* explain =
        add("explain", "Explain an error: a code, an id, a slug or a pasted message",
            [this] { return explain_command(explain_); });
    explain->add_option("text", explain_.words, "PA2007, or any message (default: standard input)");
    explain->add_flag("--json", explain_.json, "the matches with their records as JSON");
  }
  void add_errors() {
    CLI::App* errors = add("errors", "List the error reference", [this] {
      return scan_given_->parsed() ? scan_command(scan_) : errors_command(errors_);
    });
    errors->add_flag("--json", errors_.json, "all records, complete, as JSON");
    errors->add_option("--tag", errors_.filter.tag, "only records with this tag");
    errors->add_option("--repo", errors_.filter.repo,
                       "only errors of this repository, or part of its name");
    errors->add_option("--severity", errors_.filter.severity, "only error or only warning")
        ->check(CLI::IsMember({"error", "warning"}));
    scan_given_ = errors->add_subcommand(
        "scan", "List the places in Python and C++ sources that raise an error");
    scan_given_->add_option("folder", scan_.folder, "folder with sources, or one source")
        ->required();
    scan_given_->add_flag("--json", scan_.json, "a record for each, to be completed");
    scan_given_->add_option("--repo", scan_.repo, "repository that the records name");
  }
  void add_serve() {
    CLI::App* serve = add("serve", "Serve the site and the error reference on this machine",
                          [this] { return serve_command(serve_); });
    serve->add_option("--port", serve_.port, "port on 127.0.0.1; 0 picks a free one")
        ->capture_default_str();
    serve->add_option("--site", serve_.site, "folder that ./x site made (default: ./site)");
  }
  void add_info() {
    CLI::App* info = add("info", "Show version, processor and implementations, or a file's tensors",
                         [this] { return info_command(info_); });
    info->add_option("file", info_.input, "safetensors file to list");
    info->add_flag("--json", info_.json, "as JSON");
  }

  CLI::App app_{"Attention over packed variable-length batches", "packattn"};
  CallRequest call_;
  BenchRequest bench_;
  ExplainRequest explain_;
  ErrorsRequest errors_;
  ScanRequest scan_;
  ServeRequest serve_;
  CLI::App* scan_given_ = nullptr;
  InfoRequest info_;
  std::function<int()> chosen_;
};

int report_exception(const std::exception& error, bool json) {
  if (std::ferror(stdout) != 0 || !std::cout) {  // the report cannot go there either
    return report(
        {make_fault(Code::file_unwritable, {.argument = "standard output", .value = error.what()})},
        /*json=*/false);
  }
  return report(
      {make_fault(Code::internal, {.argument = "the command line", .value = error.what()})}, json);
}

int run_command_line(int count, char** arguments) {
  const std::vector<std::string> words(arguments, arguments + count);
  const bool json = std::ranges::find(words, "--json") != words.end();
  try {
    CommandLine command_line;
    const int status = command_line(count, arguments);
    // A result that did not arrive is a failure, or a script would go on with half of it.
    if (std::fflush(stdout) != 0 || !std::cout.flush()) {
      throw std::system_error(errno, std::generic_category(), "cannot write");
    }
    return status;
  } catch (const Error& error) {
    return report(error.faults(), json);
  } catch (const std::bad_alloc&) {
    return report({make_fault(Code::out_of_memory, {.value = "an unknown number of"})}, json);
  } catch (const std::exception& error) {
    return report_exception(error, json);
  }
}

}  // namespace
}  // namespace packattn::cli

int main(int count, char** arguments) {
  try {
    return packattn::cli::run_command_line(count, arguments);
  } catch (...) {  // not even the report could be written
    return packattn::cli::exit_failed;
  }
}
