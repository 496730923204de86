# SPDX-License-Identifier: Apache-2.0
# cpp-httplib under one name, Httplib::httplib. Debian builds it as a shared library whose class
# layouts depend on the macros that libcpp-httplib.pc names, so both come from there.
find_package(PkgConfig QUIET REQUIRED)
pkg_check_modules(PC_HTTPLIB QUIET IMPORTED_TARGET cpp-httplib)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Httplib
  REQUIRED_VARS PC_HTTPLIB_LINK_LIBRARIES
  VERSION_VAR PC_HTTPLIB_VERSION
  REASON_FAILURE_MESSAGE "Debian and Ubuntu: apt-get install libcpp-httplib-dev pkg-config")

if(Httplib_FOUND AND NOT TARGET Httplib::httplib)
  add_library(Httplib::httplib ALIAS PkgConfig::PC_HTTPLIB)
endif()
