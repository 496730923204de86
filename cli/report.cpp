// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <fmt/format.h>

#include "commands.h"

namespace packattn::cli {

int exit_code(const std::vector<Fault>& faults) {
  if (faults.empty()) return exit_ok;
  switch (static_cast<unsigned>(faults.front().code)) {
    case static_cast<unsigned>(Code::file_unreadable):
    case static_cast<unsigned>(Code::safetensors_malformed):
    case static_cast<unsigned>(Code::tensor_not_in_file):
    case static_cast<unsigned>(Code::file_unwritable):
    case static_cast<unsigned>(Code::port_unavailable): return exit_failed;
    default: break;
  }
  const unsigned thousand = static_cast<unsigned>(faults.front().code) / 1000;
  return thousand == 4 || thousand == 5 || thousand == 9 ? exit_failed : exit_refused;
}

int report(const std::vector<Fault>& faults, bool json) {
  if (json) fmt::print("{{\"faults\":{}}}\n", to_json(faults));
  else fmt::print(stderr, "{}\n", render(faults));
  return exit_code(faults);
}

}  // namespace packattn::cli
