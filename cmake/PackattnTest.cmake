# SPDX-License-Identifier: Apache-2.0

# packattn_test(name SOURCES file... [SHARDS n] [LIBRARIES target...])
# One GoogleTest program. ctest runs it in n processes, so that a long table uses every core; each
# writes its results to test-results/, where ./x test counts them.
function(packattn_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SHARDS" "SOURCES;LIBRARIES")
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()

  add_executable(${name} ${arg_SOURCES})
  packattn_own_code(${name})
  # Instrumented GoogleTest and JSON templates take three times as long at -O1 (38 s a file, not 12),
  # and what is tested is in the library.
  if(PACKATTN_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE packattn::packattn ${arg_LIBRARIES} GTest::gmock_main)

  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      set(test ${name}.${shard})
    endif()
    add_test(NAME ${test}
      COMMAND ${name} --gtest_brief=1
              --gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${test}.xml)
    set_tests_properties(${test} PROPERTIES
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard}"
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      TIMEOUT 900)
  endforeach()
endfunction()
