// SPDX-License-Identifier: Apache-2.0
#include "packattn/implementation.h"

#include "ops/lists.h"

namespace packattn {

std::vector<std::string> implementations(Op op) {
  std::vector<std::string> names;
  const auto collect = [&](const auto& list) {
    for (const auto& row : list) names.emplace_back(row.name);
  };
  if (op == Op::attention) {
    collect(attention_list());
  } else {
    collect(kda_list(op));
  }
  return names;
}

}  // namespace packattn
