# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` installs of the library, in two parts: what programs need to run (library) and
# what they need to be built (dev), with find_package(ejk) or pkg-config. The tool is a part of its own (tool).
include(CMakePackageConfigHelpers)

install(TARGETS ejk EXPORT ejkTargets
  LIBRARY COMPONENT library NAMELINK_COMPONENT dev
  ARCHIVE COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ejk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
  FILES_MATCHING PATTERN "*.h")

set(cmake_files ${CMAKE_INSTALL_LIBDIR}/cmake/ejk)
install(EXPORT ejkTargets NAMESPACE ejk:: DESTINATION ${cmake_files} COMPONENT dev)
configure_package_config_file(cmake/ejkConfig.cmake.in ejkConfig.cmake INSTALL_DESTINATION ${cmake_files})
# Before 1.0 a new minor version may break its users.
write_basic_package_version_file(ejkConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ejkConfig.cmake ${PROJECT_BINARY_DIR}/ejkConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/ejk_add_kernels.cmake ${PROJECT_SOURCE_DIR}/cmake/embed_kernel.cmake
  DESTINATION ${cmake_files} COMPONENT dev)

# What a static libejk needs, its users link; a shared one has it linked already.
set(own_libraries "-lhwy -pthread")
if(BUILD_SHARED_LIBS)
  set(libraries_of_users "")
  set(libraries_of_static_users ${own_libraries})
else()
  set(libraries_of_users " ${own_libraries}")
  set(libraries_of_static_users "")
endif()
# Paths relative to the file, so that the tree can be moved.
file(RELATIVE_PATH prefix_from_file ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/ejk.pc.in ejk.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ejk.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
