#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the conformance tests for 64-bit ARM with a cross compiler and runs the rows for NEON under
# user-mode emulation: the reduced tables, or all of them with `tools/test_neon.sh full` (hours).
#   apt-get install g++-aarch64-linux-gnu qemu-user
# The arm64 packages of the libraries are unpacked below build/, not installed. Elsewhere than on
# Debian, unpack them yourself and name the folder in PACKATTN_ARM64_ROOT.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(libfmt-dev libfmt9 libtbb-dev libtbb12 libtbbmalloc2 libtbbbind-2-5 libhwy-dev libhwy1
  libgtest-dev libgmock-dev nlohmann-json3-dev libc6 libgcc-s1 libstdc++6)

fetch_libraries() { # fetch_libraries FOLDER
  local work=$PWD/build/arm64-packages
  mkdir -p "$work/lists/partial" "$work/cache" "$1"
  local options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache")
  apt-get "${options[@]}" -qq update
  (cd "$work" && apt-get "${options[@]}" -qq download "${packages[@]}")
  local package
  for package in "$work"/*.deb; do dpkg -x "$package" "$1"; done
}

libraries=${PACKATTN_ARM64_ROOT:-$PWD/build/arm64-root}
[[ -d $libraries ]] || fetch_libraries "$libraries"
cmake -S . -B build/neon -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" "-DPACKATTN_ARM64_ROOT=$libraries" \
  -DPACKATTN_BUILD_TESTS=ON -DPACKATTN_BUILD_EXAMPLES=OFF -DPACKATTN_BUILD_CLI=OFF \
  -DPACKATTN_CUDA=OFF -DPACKATTN_WERROR=ON
cmake --build build/neon --target attention_conformance kda_conformance

[[ ${1:-} == full ]] || export PACKATTN_TEST_TABLE=reduced
for program in attention_conformance kda_conformance; do
  qemu-aarch64 -L /usr/aarch64-linux-gnu \
    -E "LD_LIBRARY_PATH=$libraries/usr/lib/aarch64-linux-gnu" \
    "build/neon/tests/$program" --gtest_brief=1 --gtest_filter='*neon*'
done
