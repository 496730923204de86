# SPDX-License-Identifier: Apache-2.0
# What a builder may choose. A project that adds packattn as a subdirectory gets the library alone.

option(BUILD_SHARED_LIBS "Build libpackattn as a shared library" OFF)
option(PACKATTN_BUILD_CLI "Build the packattn command" ${PROJECT_IS_TOP_LEVEL})
option(PACKATTN_BUILD_TESTS "Build the C++ tests" OFF)
option(PACKATTN_BUILD_EXAMPLES "Build the C++ examples" ${PACKATTN_BUILD_TESTS})
option(PACKATTN_BUILD_BENCH "Build the benchmarks" OFF)
option(PACKATTN_BUILD_PYTHON "Build the Python module (pip sets this)" OFF)
option(PACKATTN_INSTALL "Make the install rules" ${PROJECT_IS_TOP_LEVEL})
option(PACKATTN_WERROR "Warnings in our own code are errors (the presets set this)" OFF)
option(PACKATTN_SANITIZE "Address and undefined-behaviour sanitizers" OFF)

set(PACKATTN_CUDA AUTO CACHE STRING "CUDA backend: AUTO (when a compiler is found), ON, OFF")
set_property(CACHE PACKATTN_CUDA PROPERTY STRINGS AUTO ON OFF)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

if(PACKATTN_BUILD_TESTS AND BUILD_SHARED_LIBS)
  message(FATAL_ERROR
    "The tests reach internal functions, which a shared libpackattn hides. "
    "Use PACKATTN_BUILD_TESTS with BUILD_SHARED_LIBS=OFF.")
endif()
