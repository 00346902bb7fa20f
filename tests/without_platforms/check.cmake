# SPDX-License-Identifier: Apache-2.0
# The options EJK_OPENCL and EJK_CUDA take a platform's sources out of the build, and the tool says so.
foreach(needed source work compiler generator tool)
  if(NOT DEFINED ${needed})
    message(FATAL_ERROR "check.cmake needs -D ${needed}=...")
  endif()
endforeach()

file(REMOVE_RECURSE ${work})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${source} -B ${work} -G ${generator} -D CMAKE_CXX_COMPILER=${compiler}
  -D EJK_OPENCL=OFF -D EJK_CUDA=OFF -D EJK_BUILD_TESTS=OFF -D EJK_BUILD_EXAMPLES=OFF -D EJK_BUILD_CLI=OFF
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(READ ${work}/compile_commands.json commands)
foreach(platform opencl cuda)
  string(REGEX MATCHALL "src/platform/${platform}/[a-z_]+\\.cpp\"" compiled "${commands}")
  list(REMOVE_DUPLICATES compiled)
  if(NOT compiled STREQUAL "src/platform/${platform}/absent.cpp\"")
    message(FATAL_ERROR "without ${platform} its folder should be absent.cpp alone; it is: ${compiled}")
  endif()
endforeach()

# `doctor` asks for both.
execute_process(COMMAND ${tool} doctor OUTPUT_VARIABLE said RESULT_VARIABLE code)
foreach(option EJK_OPENCL EJK_CUDA)
  if(NOT said MATCHES "this libejk was built without it \\(CMake: -D${option}=ON")
    message(FATAL_ERROR "ejk doctor ended with ${code} and does not tell of ${option}:\n${said}")
  endif()
endforeach()
