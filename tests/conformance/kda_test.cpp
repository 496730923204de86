// SPDX-License-Identifier: Apache-2.0
// Every implementation of both forms of KDA on every case of the table, held to its promises.
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/kda_promises.h"
#include "support/coverage.h"

namespace packattn::test {
namespace {

struct Parameter {
  Op op;
  std::string implementation;
  KdaCase shape;
};
void PrintTo(const Parameter& p, std::ostream* os) {
  *os << p.implementation << " on " << p.shape.name;
}

class KdaConformance : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (!promises.taken()) GTEST_SKIP() << promises.reason();
  }
  KdaPromises promises{GetParam().op, KdaData(GetParam().shape), GetParam().implementation};
};
class OneStateKda : public KdaConformance {};
class ContinuedKda : public KdaConformance {};

TEST_P(KdaConformance, EqualsTheOracle) { promises.equal_the_oracle(); }
TEST_P(KdaConformance, NoTokensKeepTheState) { promises.no_tokens_keep_the_state(); }
TEST_P(KdaConformance, RepeatsBitForBitOnAnyThreads) { promises.repeat_on_any_threads(); }
TEST_P(KdaConformance, NaNStaysInItsSequence) { promises.nan_stays(); }
TEST_P(KdaConformance, LaterTokensChangeNoEarlierRow) { promises.later_tokens_change_nothing(); }
TEST_P(KdaConformance, WorkspaceAndProgressAreTheCallers) { promises.workspace_and_progress(); }
TEST_P(OneStateKda, PackedIsAloneInAnyOrder) { promises.packed_is_alone_in_any_order(); }
TEST_P(ContinuedKda, CutAnywhereAndContinuedIsOneShot) { promises.continued_is_one_shot(); }

bool any_case(const KdaCase&) { return true; }
auto on_cases(bool (*wanted)(const KdaCase&)) {
  std::vector<Parameter> all;
  for (const Op op : {Op::kda_recurrent, Op::kda_chunk}) {
    for (const std::string& implementation : implementations(op)) {
      for (const KdaCase& c : kda_table()) {
        if (KdaPromises::has_form(op, c) && wanted(c)) all.push_back({op, implementation, c});
      }
    }
  }
  return testing::ValuesIn(all);
}
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return test_name(info.param.implementation + "__" + info.param.shape.name);
}
INSTANTIATE_TEST_SUITE_P(All, KdaConformance, on_cases(any_case), name_of);
INSTANTIATE_TEST_SUITE_P(All, OneStateKda, on_cases(KdaPromises::has_one_state), name_of);
INSTANTIATE_TEST_SUITE_P(All, ContinuedKda, on_cases(KdaPromises::can_continue), name_of);

}  // namespace
}  // namespace packattn::test
