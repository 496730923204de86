// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include "unit/kda_support.h"

namespace packattn::test {

/// A legal call of four sequences, to be spoilt.
struct KdaChecks : testing::Test {
  KdaCase c{{.lengths = {3, 1, 0, 4}, .H = 2, .HV = 4, .K = 16, .V = 24}};
  KdaArgs args = c.args();
  KdaOptions options = c.options;
  PackedBatch batch = c.batch();
  Op op = Op::kda_recurrent;
  Context context;

  std::vector<Fault> faults() const { return check_kda(op, args, batch, options, context); }
  std::vector<Code> codes() const {
    std::vector<Code> result;
    for (const Fault& fault : faults()) result.push_back(fault.code);
    return result;
  }
  /// The only fault.
  Fault fault() const {
    const auto all = faults();
    EXPECT_EQ(all.size(), 1U) << render(all);
    return all.empty() ? Fault{} : all.front();
  }
  void expect(Code code, const std::string& argument) const {
    const Fault f = fault();
    EXPECT_EQ(f.code, code) << f.message;
    EXPECT_EQ(f.argument, argument);
    EXPECT_THAT(f.message, testing::HasSubstr(argument));
  }
  static TensorView reshape(const TensorView& x, std::vector<std::int64_t> sizes) {
    return {x.data(), x.dtype(), x.device(), sizes};
  }
};

}  // namespace packattn::test
