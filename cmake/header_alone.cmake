# SPDX-License-Identifier: Apache-2.0
# Compiles every header in a translation unit of its own: each must include what it uses, without a
# warning under the options that users' projects may have.
function(ejk_check_headers_alone target)
  set(units)
  foreach(header IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER ${header} name)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${target}/${name}.cpp)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include <@header@>\n#include <@header@>  // twice\n" @ONLY)
    list(APPEND units ${unit})
  endforeach()
  add_library(${target} OBJECT ${units})
  target_link_libraries(${target} PRIVATE ejk ejk_warnings)
  target_compile_options(${target} PRIVATE -Wpedantic -Wsign-conversion -O0 -g0)  # they never run
endfunction()
