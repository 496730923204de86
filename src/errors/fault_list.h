// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "packattn/error.h"

namespace packattn {

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
