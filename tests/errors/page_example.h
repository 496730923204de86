// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "packattn/error.h"

namespace packattn::test {

/// What is wrong with an example that has to raise `code` and no other; empty if it does.
template <class Call>
std::string problem_of_before(std::string_view code, const Call& call) {
  std::set<std::string> raised;
  try {
    call();
  } catch (const Error& error) {
    for (const Fault& fault : error.faults()) raised.insert(code_id(fault.code));
  }
  // A forced implementation that declines is one refusal with two faults: that, and its reason.
  if (raised.size() == 2 && raised.contains("PA3002")) raised.erase("PA3002");
  if (raised == std::set{std::string(code)}) return {};
  std::string found = "raised";
  for (const std::string& other : raised) found += ' ' + other;
  return raised.empty() ? "raised nothing" : found;
}

/// What an example raises that has to run to its end; empty if it does.
template <class Call>
std::string problem_of_after(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace packattn::test
