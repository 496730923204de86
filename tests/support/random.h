// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace packattn::test {

/// Numbers that are the same on every platform for one seed: the standard distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();
  double uniform();  ///< [0, 1)
  double normal();
  std::int64_t between(std::int64_t low, std::int64_t high);  ///< both ends included
  bool chance(double probability) { return uniform() < probability; }
  std::vector<std::int64_t> permutation(std::int64_t n);
  template <class T>
  const T& pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(
        between(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::uint64_t state_;
};

/// One seed per process for the property tests and the fuzzer: PACKATTN_TEST_SEED, or a new one
/// every time. It is printed when it is first asked for, so that a failure can be replayed.
std::uint64_t process_seed();

/// A seed that depends on the text alone, for data that has to be the same in every run.
std::uint64_t seed_of(std::string_view text);

}  // namespace packattn::test
