// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include <packattn/version.h>

int main() {
  std::printf("packattn %s\n", std::string(packattn::version()).c_str());
  return packattn::version().empty() ? 1 : 0;
}
