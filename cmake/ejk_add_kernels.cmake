# SPDX-License-Identifier: Apache-2.0
# ejk_add_kernels(target file.cl...) makes the text of each file a constant for the target's sources:
#
#   #include <ejk_kernels/matmul_cl.h>
#   static constexpr ejk::Source source{"matmul.cl", ejk_kernels::matmul_cl};
#
# Files of equal names need targets of their own.
function(ejk_add_kernels target)
  set(embed_kernel ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/embed_kernel.cmake)
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${target}_kernels)
  foreach(file IN LISTS ARGN)
    get_filename_component(from ${file} ABSOLUTE)
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER ${name} name)
    set(header ${include}/ejk_kernels/${name}.h)
    add_custom_command(OUTPUT ${header}
      COMMAND ${CMAKE_COMMAND} -D from=${from} -D to=${header} -D name=${name} -P ${embed_kernel}
      DEPENDS ${from} ${embed_kernel} VERBATIM)
    target_sources(${target} PRIVATE ${header})
  endforeach()
  target_include_directories(${target} PRIVATE ${include})
endfunction()
