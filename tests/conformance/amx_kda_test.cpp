// SPDX-License-Identifier: Apache-2.0
// cpu/kda_chunk.amx_bf16 on emulated tiles: every case of the table in the types that it takes.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/amx_kernels.h"
#include "conformance/kda_promises.h"
#include "support/compare.h"
#include "support/coverage.h"

namespace packattn::test {
namespace {

[[maybe_unused]] const bool emulated = (use_emulated_tiles(), true);

constexpr std::string_view adapted = "_in_16_bits";

class AmxKda : public testing::TestWithParam<KdaCase> {
 protected:
  void SetUp() override {
    // Cases that were written for fp32 may have a handful of elements.
    random_shapes = GetParam().name.ends_with(adapted);
    if (!promises.taken()) GTEST_SKIP() << promises.reason();
  }
  KdaPromises promises{Op::kda_chunk, KdaData(GetParam()), "cpu/kda_chunk.amx_bf16"};
};

TEST_P(AmxKda, KeepsItsPromises) {
  promises.all();
  promises.workspace_and_progress();
}

std::vector<KdaCase> cases() {
  std::vector<KdaCase> all;
  for (KdaCase c : kda_table()) {
    if (!KdaPromises::has_form(Op::kda_chunk, c)) continue;
    if (c.dtype == DType::f32) {
      c.dtype = DType::bf16;
      c.name.append(adapted);
    }
    all.push_back(c);
  }
  return all;
}
std::string name_of(const testing::TestParamInfo<KdaCase>& info) {
  return test_name(info.param.name);
}
INSTANTIATE_TEST_SUITE_P(All, AmxKda, testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace packattn::test
