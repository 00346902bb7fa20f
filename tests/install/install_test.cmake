# SPDX-License-Identifier: Apache-2.0
# Installs the library that was built, then configures, builds and runs a project that uses it.
foreach(needed build work consumer compiler generator version)
  if(NOT DEFINED ${needed})
    message(FATAL_ERROR "install_test.cmake needs -D ${needed}=...")
  endif()
endforeach()

function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work})
step(${CMAKE_COMMAND} --install ${build} --prefix ${work}/prefix)

# Nothing but this library's own headers, library, tool and package files may be installed.
file(GLOB_RECURSE installed RELATIVE ${work}/prefix ${work}/prefix/*)
foreach(file IN LISTS installed)
  if(NOT file MATCHES "^(include/ejk/.*\\.h|lib.*/libejk\\.[^/]*|lib.*/cmake/ejk/[^/]*\\.cmake|bin/ejk|share/(man/man1/ejk\\.1|bash-completion/completions/ejk|zsh/site-functions/_ejk|fish/vendor_completions\\.d/ejk\\.fish))$")
    message(FATAL_ERROR "unexpected file in the install tree: ${file}")
  endif()
endforeach()

step(${CMAKE_COMMAND} -S ${consumer} -B ${work}/consumer -G ${generator}
  -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_PREFIX_PATH=${work}/prefix -D ejk_expected_version=${version})
step(${CMAKE_COMMAND} --build ${work}/consumer)
step(${work}/consumer/consumer)
