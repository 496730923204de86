// SPDX-License-Identifier: Apache-2.0
// Every implementation of softmax attention on every case of the table, held to its promises.
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/attention_promises.h"
#include "support/coverage.h"

namespace packattn::test {
namespace {

using Parameter = std::tuple<std::string, AttentionCase>;

class AttentionConformance : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (!promises.taken()) GTEST_SKIP() << promises.reason();
  }
  AttentionPromises promises{AttentionData(std::get<1>(GetParam())), std::get<0>(GetParam())};
};
class CausalAttention : public AttentionConformance {};
class ContinuedAttention : public AttentionConformance {};
class SplitAttention : public AttentionConformance {};

TEST_P(AttentionConformance, EqualsTheOracle) { promises.equal_the_oracle(); }
TEST_P(AttentionConformance, RepeatsBitForBitOnAnyThreads) { promises.repeat_on_any_threads(); }
TEST_P(AttentionConformance, PackedIsEachSequenceAlone) { promises.packed_is_alone(); }
TEST_P(AttentionConformance, OrderOfSequencesIsFree) { promises.any_order(); }
TEST_P(AttentionConformance, NaNStaysInItsSequence) { promises.nan_stays(); }
TEST_P(AttentionConformance, WorkspaceAndProgressAreTheCallers) {
  promises.workspace_and_progress();
}
TEST_P(CausalAttention, LaterTokensChangeNoEarlierRow) { promises.later_tokens_change_nothing(); }
TEST_P(ContinuedAttention, ChunkedPrefillIsOneShot) { promises.chunked_prefill_is_one_shot(); }
TEST_P(SplitAttention, SplitKeysAndMergedAreOneShot) { promises.split_and_merged_is_one_shot(); }

auto on_cases(bool (*wanted)(const AttentionCase&)) {
  auto table = attention_table();
  std::erase_if(table, [&](const AttentionCase& c) { return !wanted(c); });
  return testing::Combine(testing::ValuesIn(implementations(Op::attention)),
                          testing::ValuesIn(table));
}
bool any_case(const AttentionCase&) { return true; }
std::string name_of(const testing::TestParamInfo<Parameter>& info) {
  return test_name(std::get<0>(info.param) + "__" + std::get<1>(info.param).name);
}
INSTANTIATE_TEST_SUITE_P(All, AttentionConformance, on_cases(any_case), name_of);
INSTANTIATE_TEST_SUITE_P(All, CausalAttention, on_cases(AttentionPromises::is_causal), name_of);
INSTANTIATE_TEST_SUITE_P(All, ContinuedAttention, on_cases(AttentionPromises::can_continue),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, SplitAttention, on_cases(AttentionPromises::can_split), name_of);

}  // namespace
}  // namespace packattn::test
