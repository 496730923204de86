// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "options.h"

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

struct ExplainRequest {
  std::vector<std::string> words;  ///< none: standard input is read
  bool json = false;
};
int explain_command(const ExplainRequest& request);

struct ErrorsRequest {
  std::string tag, repo, severity;  ///< empty: any
  bool json = false;
};
int errors_command(const ErrorsRequest& request);

struct InfoRequest {
  std::string input;  ///< a file to list; empty: about packattn
  bool json = false;
};
int info_command(const InfoRequest& request);

}  // namespace packattn::cli
