# SPDX-License-Identifier: Apache-2.0
# How our own code is compiled. Nothing here reaches a project that uses the library.

# ccache is optional. The base directory lets two checkouts share one cache.
find_program(PACKATTN_CCACHE ccache)
mark_as_advanced(PACKATTN_CCACHE)
if(PACKATTN_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    ${PACKATTN_CCACHE})
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

# Sanitizers change the ABI of standard containers' checks, so they hold for every target.
if(PACKATTN_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer
                      # An index past a container's end stops even where its memory is live.
                      -D_GLIBCXX_ASSERTIONS
                      # g++ 12 sees uninitialised values in its own std::regex when instrumented.
                      -Wno-maybe-uninitialized -Wno-uninitialized)
  add_link_options(-fsanitize=address,undefined)
endif()

# AMX, for which a few units are compiled, and the parts of AVX-512 that go with it.
include(CheckCXXCompilerFlag)
set(PACKATTN_AVX512_BF16_OPTIONS
  -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mf16c)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 sees uninitialised values in its own intrinsics.
  list(APPEND PACKATTN_AVX512_BF16_OPTIONS -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
set(PACKATTN_AMX OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  check_cxx_compiler_flag("-mavx512bf16 -mamx-bf16" PACKATTN_COMPILER_HAS_AMX)
  set(PACKATTN_AMX ${PACKATTN_COMPILER_HAS_AMX})
endif()

# packattn_own_code(target): language level, visibility and warnings of our own targets.
function(packattn_own_code target)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20
    CXX_STANDARD_REQUIRED ON
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi
    # Error messages and excerpts must not show where a machine keeps its checkout.
    -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=
    # A reordered sum is a different sum: bits are part of the contract.
    -ffp-contract=off)
  if(PACKATTN_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
