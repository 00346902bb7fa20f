# SPDX-License-Identifier: Apache-2.0
# Compiles every file beside this one. Each holds one mistake in the kernel `Broken` and begins with
#   // expect: TEXT
# It must not compile, its only error must hold TEXT, the kernel must be named, and all of what the
# compiler prints must fit on a screen: one mistake, one error.
# Needs: compiler, include (the library's headers), work (a folder of its own).
file(GLOB sources ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
if(NOT sources)
  message(FATAL_ERROR "no files in ${CMAKE_CURRENT_LIST_DIR}")
endif()

# g++ finds the precompiled header where it looks for the header; it saves two thirds of the time.
file(MAKE_DIRECTORY ${work}/ejk)
execute_process(COMMAND ${compiler} -std=c++20 -w -I${include} -x c++-header ${include}/ejk/ejk.h
  -o ${work}/ejk/ejk.h.gch ERROR_VARIABLE problem RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "the headers do not compile:\n${problem}")
endif()

set(most_lines 30)
set(failures 0)
foreach(source IN LISTS sources)
  file(STRINGS ${source} first_line LIMIT_COUNT 1)
  string(REGEX REPLACE "^// expect: " "" expected "${first_line}")
  cmake_path(GET source FILENAME name)
  execute_process(COMMAND ${compiler} -std=c++20 -fsyntax-only -I${work} -I${include} ${source}
    OUTPUT_QUIET ERROR_VARIABLE output RESULT_VARIABLE status)
  string(REGEX MATCH "[^\n]*error:[^\n]*" first_error "${output}")
  string(FIND "${first_error}" "${expected}" found)
  string(FIND "${output}" "Broken" named)
  string(REGEX MATCHALL "error:" errors "${output}")
  list(LENGTH errors error_count)
  string(REGEX MATCHALL "\n" lines "${output}")
  list(LENGTH lines line_count)
  if(expected STREQUAL first_line)
    set(why "has no line `// expect: ...`")
  elseif(status EQUAL 0)
    set(why "compiles")
  elseif(found EQUAL -1)
    set(why "expected: ${expected}\n  first error: ${first_error}")
  elseif(named EQUAL -1)
    set(why "the output does not name the kernel")
  elseif(error_count GREATER 1)
    set(why "${error_count} errors")
  elseif(line_count GREATER most_lines)
    set(why "${line_count} lines")
  else()
    continue()
  endif()
  message("${name}: ${why}")
  math(EXPR failures "${failures} + 1")
endforeach()
file(REMOVE_RECURSE ${work})

list(LENGTH sources count)
if(failures)
  message(FATAL_ERROR "${failures} of ${count} mistakes are not said clearly")
endif()
message("${count} mistakes, each said in one error")
