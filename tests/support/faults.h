// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "packattn/error.h"

namespace packattn {

inline void PrintTo(const Fault& fault, std::ostream* os) {
  *os << code_id(fault.code) << " \"" << fault.message << "\" position \"" << fault.position
      << "\" value \"" << fault.value << "\" limit \"" << fault.limit << '"';
}

}  // namespace packattn

namespace packattn::test {

/// A fault's code, argument, position and value; its message has to name the argument.
MATCHER_P4(IsFault, code, argument, position, value, "") {
  return arg.code == code && arg.argument == argument && arg.position == position &&
         arg.value == value && arg.message.find(argument) != std::string::npos;
}

/// The faults of a call that has to be refused.
template <class Call>
std::vector<Fault> faults_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.faults();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace packattn::test
