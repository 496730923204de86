// SPDX-License-Identifier: Apache-2.0
#include "support/coverage.h"

#include <cctype>
#include <cstdio>
#include <map>

#include <gtest/gtest.h>

namespace packattn::test {
namespace {

struct Count {
  int taken = 0;
  std::map<std::string, int> declined;  // by reason
};
std::map<std::string, Count>& counts() {
  static std::map<std::string, Count> counts;
  return counts;
}

class Report : public testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [implementation, count] : counts()) {
      std::printf("%s ran %d calls\n", implementation.c_str(), count.taken);
      for (const auto& [reason, times] : count.declined) {
        std::printf("  declined %d: %s\n", times, reason.c_str());
      }
    }
  }
};
[[maybe_unused]] const auto* const report = testing::AddGlobalTestEnvironment(new Report);

}  // namespace

std::string test_name(std::string_view text) {
  std::string name(text);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

bool takes(const std::string& implementation, const std::optional<Fault>& declined) {
  Count& count = counts()[implementation];
  if (!declined) {
    ++count.taken;
    return true;
  }
  const std::string id = code_id(declined->code);
  ++count.declined[id + " " + declined->message];
  EXPECT_TRUE(id.starts_with("PA3") || id.starts_with("PA4")) << id << " is no reason to decline";
  EXPECT_FALSE(implementation.starts_with("ref/"))
      << "the reference declines: " << render(*declined);
  return false;
}

}  // namespace packattn::test
