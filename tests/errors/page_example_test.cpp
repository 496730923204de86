// SPDX-License-Identifier: Apache-2.0
#include "errors/page_example.h"

#include <vector>

#include <gtest/gtest.h>

namespace packattn {
namespace {

using test::problem_of_after;
using test::problem_of_before;

void raise(const std::vector<Code>& codes) {
  std::vector<Fault> faults;
  for (const Code code : codes) faults.push_back(make_fault(code, {}));
  throw Error(std::move(faults));
}

TEST(PageExample, TheCodeOfThePageAndNoOther) {
  const auto problem = [](const std::vector<Code>& codes) {
    return problem_of_before("PA2007", [&] { raise(codes); });
  };
  EXPECT_EQ(problem({Code::boundaries_decrease}), "");
  EXPECT_EQ(problem({Code::boundaries_decrease, Code::boundaries_decrease}), "");
  EXPECT_EQ(problem({Code::implementation_declined, Code::boundaries_decrease}), "");
  EXPECT_EQ(problem({Code::boundaries_start}), "raised PA2005");
  EXPECT_EQ(problem({Code::boundaries_decrease, Code::boundaries_start}), "raised PA2005 PA2007");
  EXPECT_EQ(problem_of_before("PA2007", [] {}), "raised nothing");
}

TEST(PageExample, AFixThatIsRefused) {
  EXPECT_EQ(problem_of_after([] {}), "");
  const std::string problem = problem_of_after([] { raise({Code::boundaries_start}); });
  EXPECT_NE(problem.find("PA2005"), std::string::npos) << problem;
}

}  // namespace
}  // namespace packattn
