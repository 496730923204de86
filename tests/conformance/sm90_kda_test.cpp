// SPDX-License-Identifier: Apache-2.0
// sm90/kda_chunk: every case of the table in the types that it takes, in chunks of 64, and at sizes
// where its own chunks, groups of tokens and halves of a head end.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/kda_promises.h"
#include "support/compare.h"
#include "support/coverage.h"

namespace packattn::test {
namespace {

const std::string row = "sm90/kda_chunk";

class Sm90Kda : public testing::TestWithParam<KdaCase> {
 protected:
  void SetUp() override {
    random_shapes = true;  // cases that were written for fp32 may have a handful of elements
    if (!promises.taken()) GTEST_SKIP() << promises.reason();
  }
  void TearDown() override { random_shapes = false; }
  KdaPromises promises{Op::kda_chunk, KdaData(GetParam()), row};
};

TEST_P(Sm90Kda, KeepsItsPromises) {
  promises.all();
  promises.workspace_and_progress();
}

/// Lengths around 16, 64 and 128 tokens with numbers of every kind.
void add_own(std::vector<KdaCase>& all) {
  for (const KdaNumbers numbers : {KdaNumbers::mild, KdaNumbers::interrupted, KdaNumbers::wild,
                                   KdaNumbers::collinear, KdaNumbers::nearly_collinear}) {
    for (const auto& [k, v] : {std::pair{128, 128}, std::pair{64, 192}}) {
      all.push_back({.name = "own_" + std::to_string(static_cast<int>(numbers)) + "_" +
                             std::to_string(k) + "_" + std::to_string(v),
                     .lengths = {200, 0, 64, 15, 129, 1, 48},
                     .heads = 1,
                     .value_heads = 2,
                     .key_dim = k,
                     .value_dim = v,
                     .dtype = DType::bf16,
                     .options = {.state_layout = StateLayout::v_first},
                     .state = KdaState::separate,
                     .numbers = numbers});
    }
  }
}

std::vector<KdaCase> cases() {
  std::vector<KdaCase> all;
  const auto rows = implementations(Op::kda_chunk);
  if (std::find(rows.begin(), rows.end(), row) == rows.end()) return all;
  for (KdaCase c : kda_table()) {
    if (!KdaPromises::has_form(Op::kda_chunk, c)) continue;
    if (c.dtype == DType::f32) {
      c.dtype = DType::bf16;
      c.name.append("_in_16_bits");
    }
    all.push_back(c);
  }
  add_own(all);
  return all;
}
std::string name_of(const testing::TestParamInfo<KdaCase>& info) {
  return test_name(info.param.name);
}
INSTANTIATE_TEST_SUITE_P(All, Sm90Kda, testing::ValuesIn(cases()), name_of);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Sm90Kda);

}  // namespace
}  // namespace packattn::test
