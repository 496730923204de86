# SPDX-License-Identifier: Apache-2.0
# Cross-compiles for 64-bit ARM and runs what it builds under user-mode emulation. Needs
# g++-aarch64-linux-gnu and qemu-user; PACKATTN_ARM64_ROOT is a folder with the libraries' arm64
# packages unpacked (tools/test_neon.sh makes one).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PACKATTN_ARM64_ROOT)
set(libraries ${PACKATTN_ARM64_ROOT}/usr/lib/aarch64-linux-gnu)
find_program(CMAKE_CXX_COMPILER NAMES aarch64-linux-gnu-g++ aarch64-linux-gnu-g++-14
             aarch64-linux-gnu-g++-13 aarch64-linux-gnu-g++-12 REQUIRED)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${libraries}")

set(CMAKE_FIND_ROOT_PATH ${PACKATTN_ARM64_ROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${PACKATTN_ARM64_ROOT})

set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${libraries})
