# SPDX-License-Identifier: Apache-2.0
# Highway under one name, Highway::hwy. Distributions ship its CMake files with different targets
# and some with none, but all ship libhwy.pc.
find_package(PkgConfig QUIET REQUIRED)
pkg_check_modules(PC_LIBHWY QUIET libhwy)

find_path(Highway_INCLUDE_DIR hwy/highway.h HINTS ${PC_LIBHWY_INCLUDE_DIRS})
find_library(Highway_LIBRARY hwy HINTS ${PC_LIBHWY_LIBRARY_DIRS})
mark_as_advanced(Highway_INCLUDE_DIR Highway_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highway
  REQUIRED_VARS Highway_LIBRARY Highway_INCLUDE_DIR
  VERSION_VAR PC_LIBHWY_VERSION
  REASON_FAILURE_MESSAGE "Debian and Ubuntu: apt-get install libhwy-dev pkg-config")

if(Highway_FOUND AND NOT TARGET Highway::hwy)
  add_library(Highway::hwy UNKNOWN IMPORTED)
  set_target_properties(Highway::hwy PROPERTIES
    IMPORTED_LOCATION ${Highway_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Highway_INCLUDE_DIR}
    INTERFACE_COMPILE_OPTIONS "${PC_LIBHWY_CFLAGS_OTHER}")
endif()
