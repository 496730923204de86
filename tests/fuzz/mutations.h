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
