// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fuzz/call.h"

namespace packattn::test::fuzz {

/// One way to spoil a call. `aim` is the code it is meant to provoke on a call that is legal
/// otherwise; what it really provokes is for the library to say.
struct Mutation {
  std::string name;
  Code aim;
  /// False if this call has nothing to spoil in that way.
  std::function<bool(Call&, Random&)> apply;
};

std::vector<Mutation> tensor_mutations();
std::vector<Mutation> boundary_mutations();
std::vector<Mutation> option_mutations();
std::vector<Mutation> kda_mutations();
std::vector<Mutation> layer_mutations();

// Sums and products that wrap: a second mutation may find what an absurd one left.
inline std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
inline std::int64_t times(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

/// The name of a tensor of the call that `wanted` accepts; empty if there is none.
template <class Wanted>
std::string pick_tensor(Call& call, Random& random, Wanted&& wanted) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : call.tensors) {
    if (wanted(name, tensor)) names.push_back(name);
  }
  return names.empty() ? std::string() : random.pick(names);
}
inline std::string any_tensor(Call& call, Random& random) {
  return pick_tensor(call, random, [](const std::string&, const Tensor&) { return true; });
}

}  // namespace packattn::test::fuzz
