# SPDX-License-Identifier: Apache-2.0
# cmake --install: library, headers, command, and what find_package(packattn) reads.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/packattn)

install(TARGETS packattn EXPORT packattn
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT sdk
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/packattn TYPE INCLUDE COMPONENT sdk)
install(FILES ${PROJECT_BINARY_DIR}/generated/packattn/catalogue.def
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/packattn COMPONENT sdk)
install(EXPORT packattn NAMESPACE packattn:: FILE packattnTargets.cmake
  DESTINATION ${package_dir} COMPONENT sdk)

if(TARGET packattn_cli)
  set_target_properties(packattn_cli PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS packattn_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/packattnConfig.cmake.in
  ${PROJECT_BINARY_DIR}/packattnConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/packattnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/packattnConfig.cmake
  ${PROJECT_BINARY_DIR}/packattnConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindHighway.cmake
  DESTINATION ${package_dir} COMPONENT sdk)
