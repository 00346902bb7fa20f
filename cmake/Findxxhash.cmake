# SPDX-License-Identifier: Apache-2.0
# Finds xxHash for use as a header (no library is linked) and defines xxhash::header.
find_path(xxhash_INCLUDE_DIR xxhash.h)
mark_as_advanced(xxhash_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxhash REQUIRED_VARS xxhash_INCLUDE_DIR)

if(xxhash_FOUND AND NOT TARGET xxhash::header)
  add_library(xxhash::header INTERFACE IMPORTED)
  target_include_directories(xxhash::header INTERFACE ${xxhash_INCLUDE_DIR})
  target_compile_definitions(xxhash::header INTERFACE XXH_INLINE_ALL)
endif()
