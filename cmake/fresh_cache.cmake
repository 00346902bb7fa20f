# SPDX-License-Identifier: Apache-2.0
# Tests keep to a store of their own, empty at the start of a run, and leave the user's alone.
set(EJK_TEST_CACHE ${PROJECT_BINARY_DIR}/test_cache)

add_test(NAME empty_test_cache COMMAND ${CMAKE_COMMAND} -E rm -rf ${EJK_TEST_CACHE})
set_tests_properties(empty_test_cache PROPERTIES FIXTURES_SETUP test_cache)

# Call after add_test(NAME name ...).
function(ejk_use_fresh_cache name)
  string(MAKE_C_IDENTIFIER ${name} directory)
  set_property(TEST ${name} APPEND PROPERTY FIXTURES_REQUIRED test_cache)
  set_property(TEST ${name} APPEND PROPERTY
    ENVIRONMENT EJKERNEL_PERSISTENT_CACHE_DIR=${EJK_TEST_CACHE}/${directory})
endfunction()
