// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "packattn/error.h"

namespace packattn {

/// The parts of a fault that its raise site knows; message and help come from the catalogue.
struct FaultFields {
  std::string argument = {};
  std::string position = {};
  std::string value = {};
  std::string limit = {};
  std::string note = {};
};

/// A fault with its message and help rendered from the catalogue's templates.
Fault make_fault(Code code, FaultFields fields);

/// Collects the faults of one call, so that all of them are reported at once.
class FaultList {
 public:
  void add(Code code, FaultFields fields) {
    faults_.push_back(make_fault(code, std::move(fields)));
  }
  void add(std::vector<Fault> faults);

  bool empty() const { return faults_.empty(); }
  std::vector<Fault> take() && { return std::move(faults_); }
  void throw_if_any() &&;

 private:
  std::vector<Fault> faults_;
};

/// Throws an Error with a single fault.
[[noreturn]] void fail(Code code, FaultFields fields);

}  // namespace packattn
