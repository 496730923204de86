// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "fuzz/call.h"

namespace packattn::test::fuzz {

/// A call's arguments as they lie in memory.
struct Views {
  std::map<std::string, TensorView> by_name;
  TensorView operator[](const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? TensorView{} : found->second;
  }
};

/// The neighbours of KDA, checked or run.
std::vector<Fault> check_layer(const Call& call, const Views& v, const BatchSpec& spec,
                               const Context& context);
void run_layer(const Call& call, const Views& v, const BatchSpec& spec, const Context& context);

}  // namespace packattn::test::fuzz
