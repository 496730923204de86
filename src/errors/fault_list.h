// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "packattn/error.h"

namespace packattn {

/// Collects the faults of one call, so that all of them are reported at once. Of each code it keeps
/// the first `most_of_a_code`; the last of these says in `Fault::more` how many there are beyond.
class FaultList {
 public:
  /// A pool with a hundred thousand wrong slots is one mistake: listed in full, it was 9 MB of
  /// text.
  static constexpr std::size_t most_of_a_code = 16;

  void add(Code code, FaultFields fields) {
    if (has_room(code)) faults_.push_back(make_fault(code, std::move(fields)));
  }
  void add(std::vector<Fault> faults);

  bool empty() const { return faults_.empty(); }
  std::vector<Fault> take() && { return std::move(faults_); }
  void throw_if_any() &&;

 private:
  struct Tally {
    std::size_t listed = 0;
    std::size_t last = 0;  ///< index of the last one listed
  };

  /// Whether the next fault of this code is to be listed; if not, it has been counted.
  bool has_room(Code code);

  std::vector<Fault> faults_;
  std::map<Code, Tally> tallies_;
};

/// Throws an Error with a single fault.
[[noreturn]] void fail(Code code, FaultFields fields);

}  // namespace packattn
