// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "support/attention_data.h"
#include "support/compare.h"
#include "support/coverage.h"

namespace packattn::test {

using AttentionParameter = std::tuple<std::string, AttentionCase>;

class AttentionConformance : public testing::TestWithParam<AttentionParameter> {
 protected:
  AttentionConformance() : data_(std::get<1>(GetParam())) {}

  void SetUp() override {
    placement_ = std::make_unique<AttentionPlacement>(data_);
    const auto declined = placement_->declined(implementation());
    if (!takes(implementation(), declined)) {
      expect_forced_is_refused(*declined);
      GTEST_SKIP() << declined->message;
    }
  }

  const std::string& implementation() const { return std::get<0>(GetParam()); }
  const AttentionCase& shape() const { return data_.shape; }
  std::vector<std::int64_t> out_shape(std::int64_t rows) const {
    return {rows, shape().heads_q, shape().dv()};
  }
  std::vector<std::int64_t> lse_shape(std::int64_t rows) const { return {shape().heads_q, rows}; }

  std::vector<AttentionResult> run(const AttentionData& data) {
    return AttentionPlacement(data).run(implementation());
  }

  void expect_same(const AttentionResult& actual, const AttentionResult& expected,
                   const std::string& what) {
    const auto rows =
        static_cast<std::int64_t>(expected.out.size()) / (shape().heads_q * shape().dv());
    EXPECT_TRUE(same_bits(actual.out, expected.out, out_shape(rows))) << "out, " << what;
    EXPECT_TRUE(same_bits(actual.lse, expected.lse, lse_shape(rows))) << "lse, " << what;
  }

  void expect_forced_is_refused(const Fault& reason) {
    try {
      placement_->run(implementation());
      ADD_FAILURE() << implementation() << " ran what it declines";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::implementation_declined);
      EXPECT_NE(std::string(error.what()).find(reason.message), std::string::npos);
    }
  }

  AttentionData data_;
  std::unique_ptr<AttentionPlacement> placement_;
};

inline std::vector<AttentionCase> only(bool (*wanted)(const AttentionCase&)) {
  auto table = attention_table();
  std::erase_if(table, [&](const AttentionCase& c) { return !wanted(c); });
  return table;
}
inline auto every_implementation_on(const std::vector<AttentionCase>& table) {
  return testing::Combine(testing::ValuesIn(implementations(Op::attention)),
                          testing::ValuesIn(table));
}
inline std::string attention_name(const testing::TestParamInfo<AttentionParameter>& info) {
  return test_name(std::get<0>(info.param) + "__" + std::get<1>(info.param).name);
}

}  // namespace packattn::test
