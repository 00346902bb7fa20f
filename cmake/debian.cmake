# SPDX-License-Identifier: Apache-2.0
# Debian packages of the three parts that are installed: libejk, libejk-dev and ejk (`make deb`).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ejk)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the authors of ejk")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "kernels that run with the best configuration for their shapes")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL library dev tool)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libejk)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/triggers)
file(WRITE ${PROJECT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
  "The shared library: picks the configuration of a compute kernel for a call's shapes and device, by measuring, and
keeps what it found.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libejk-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libejk (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_DEV_DESCRIPTION
  "Headers, and what CMake and pkg-config need to find the library.")

# It has the library inside, private parts too.
set(CPACK_DEBIAN_TOOL_PACKAGE_NAME ejk)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION utils)
set(CPACK_COMPONENT_TOOL_DESCRIPTION
  "The tool: lists and explains stored choices, tunes calls away from the program that makes them, and moves results
between machines.")

# Each package has the license; installing without packages does not need it three times.
foreach(component library dev tool)
  string(TOUPPER ${component} upper)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright COMPONENT ${component} EXCLUDE_FROM_ALL
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
endforeach()
include(CPack)
