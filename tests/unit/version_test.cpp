// SPDX-License-Identifier: Apache-2.0
#include "packattn/version.h"

#include <string>

#include <gtest/gtest.h>

namespace packattn {
namespace {

TEST(Version, LinkedLibraryMatchesItsHeaders) {
  const std::string expected = std::to_string(PACKATTN_VERSION_MAJOR) + "." +
                               std::to_string(PACKATTN_VERSION_MINOR) + "." +
                               std::to_string(PACKATTN_VERSION_PATCH);
  EXPECT_EQ(version(), expected);
}

}  // namespace
}  // namespace packattn
