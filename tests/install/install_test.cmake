# SPDX-License-Identifier: Apache-2.0
# Installs the library that was built, then builds and runs a program that uses it: with find_package, with
# pkg-config, and, as far as the library's own code is not compiled again, with add_subdirectory.
foreach(needed build work source compiler generator version)
  if(NOT DEFINED ${needed})
    message(FATAL_ERROR "install_test.cmake needs -D ${needed}=...")
  endif()
endforeach()
set(consumer ${CMAKE_CURRENT_LIST_DIR}/consumer)

function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work})
step(${CMAKE_COMMAND} --install ${build} --prefix ${work}/installed)
file(RENAME ${work}/installed ${work}/prefix)  # the tree can be moved

# Nothing but this library's own headers, library, tool and package files may be installed.
file(GLOB_RECURSE installed RELATIVE ${work}/prefix ${work}/prefix/*)
foreach(file IN LISTS installed)
  if(NOT file MATCHES "^(include/ejk/.*\\.h|lib.*/libejk\\.[^/]*|lib.*/cmake/ejk/[^/]*\\.cmake|lib.*/pkgconfig/ejk\\.pc|bin/ejk|share/(man/man1/ejk\\.1|bash-completion/completions/ejk|zsh/site-functions/_ejk|fish/vendor_completions\\.d/ejk\\.fish))$")
    message(FATAL_ERROR "unexpected file in the install tree: ${file}")
  endif()
endforeach()

set(configure ${CMAKE_COMMAND} -S ${consumer} -G ${generator} -D CMAKE_CXX_COMPILER=${compiler})
step(${configure} -B ${work}/consumer -D CMAKE_PREFIX_PATH=${work}/prefix -D ejk_expected_version=${version})
step(${CMAKE_COMMAND} --build ${work}/consumer)
step(${work}/consumer/consumer)

# The headers and the libraries that pkg-config names are enough for what does not embed kernels.
find_program(pkg_config NAMES pkgconf pkg-config REQUIRED)
file(GLOB_RECURSE file ${work}/prefix/*.pc)
get_filename_component(folder ${file} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${folder})
step(${pkg_config} --exact-version=${version} ejk)
execute_process(COMMAND ${pkg_config} --cflags --libs ejk OUTPUT_VARIABLE options COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(options UNIX_COMMAND "${options}")
get_filename_component(libraries ${folder} DIRECTORY)
step(${compiler} -std=c++20 ${consumer}/version.cpp -o ${work}/version ${options} -Wl,-rpath,${libraries})
step(${work}/version ${version})

# As a part of the program's own project: its targets are there under the same names, nothing but the
# library is built or installed, and kernels are embedded.
step(${configure} -B ${work}/part -D ejk_source=${source})
file(STRINGS ${work}/part/CMakeCache.txt options REGEX "^EJK_(INSTALL|BUILD_[A-Z]+):BOOL=ON")
if(options)
  message(FATAL_ERROR "in another project there should be the library alone; got ${options}")
endif()
step(${CMAKE_COMMAND} --build ${work}/part --target consumer_alone)
