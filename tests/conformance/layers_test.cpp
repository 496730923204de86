// SPDX-License-Identifier: Apache-2.0
// Every implementation of the neighbours of KDA on every case of the table.
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/layer_promises.h"
#include "support/coverage.h"

namespace packattn::test {
namespace {

struct Parameter {
  std::string implementation;
  LayerCase shape;
};
void PrintTo(const Parameter& p, std::ostream* os) {
  *os << p.implementation << " on " << p.shape.name;
}

class LayerConformance : public testing::TestWithParam<Parameter> {};

TEST_P(LayerConformance, KeepsItsPromises) {
  LayerPromises promises{LayerData(GetParam().shape), GetParam().implementation};
  if (!promises.taken()) GTEST_SKIP() << GetParam().implementation << " declines";
  promises.all();
}

std::vector<Parameter> all_cases() {
  std::vector<Parameter> all;
  for (const LayerCase& c : layer_table()) {
    for (const std::string& implementation : implementations(c.op)) {
      all.push_back({implementation, c});
    }
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return test_name(info.param.implementation + "__" + info.param.shape.name);
}
INSTANTIATE_TEST_SUITE_P(All, LayerConformance, testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace packattn::test
