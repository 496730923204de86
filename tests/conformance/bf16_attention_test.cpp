// SPDX-License-Identifier: Apache-2.0
// cpu/attention.avx512_bf16 on the cases that the table has in fp32, in bf16.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/attention_promises.h"
#include "support/compare.h"
#include "support/coverage.h"

namespace packattn::test {
namespace {

const std::string row = "cpu/attention.avx512_bf16";

class Bf16Attention : public testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    random_shapes = true;  // cases that were written for fp32 may have a handful of elements
    if (!promises.taken()) GTEST_SKIP() << promises.reason();
  }
  void TearDown() override { random_shapes = false; }
  AttentionPromises promises{AttentionData(GetParam()), row};
};

TEST_P(Bf16Attention, KeepsItsPromises) { promises.all(); }

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  const auto rows = implementations(Op::attention);
  if (std::find(rows.begin(), rows.end(), row) == rows.end()) return all;
  for (AttentionCase c : attention_table()) {
    if (c.dtype != DType::f32) continue;
    c.dtype = DType::bf16;
    all.push_back(c);
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<AttentionCase>& info) {
  return test_name(info.param.name);
}
INSTANTIATE_TEST_SUITE_P(All, Bf16Attention, testing::ValuesIn(cases()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Bf16Attention);

}  // namespace
}  // namespace packattn::test
