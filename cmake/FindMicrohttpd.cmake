# SPDX-License-Identifier: Apache-2.0
# libmicrohttpd under one name, Microhttpd::microhttpd.
find_package(PkgConfig QUIET REQUIRED)
pkg_check_modules(PC_MICROHTTPD QUIET IMPORTED_TARGET libmicrohttpd)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Microhttpd
  REQUIRED_VARS PC_MICROHTTPD_LINK_LIBRARIES
  VERSION_VAR PC_MICROHTTPD_VERSION
  REASON_FAILURE_MESSAGE "Debian and Ubuntu: apt-get install libmicrohttpd-dev pkg-config")

if(Microhttpd_FOUND AND NOT TARGET Microhttpd::microhttpd)
  add_library(Microhttpd::microhttpd ALIAS PkgConfig::PC_MICROHTTPD)
endif()
