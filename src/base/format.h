// SPDX-License-Identifier: Apache-2.0
// fmt for the library's own files: compiled once, in format.cpp, as header-only it takes up to 3 s of CPU
// in each of 25 files. The namespace of its own keeps it apart from a fmt that the program links.
#pragma once

#if defined(FMT_VERSION)
#error "include base/format.h before what includes <fmt/...>"
#endif
#define FMT_BEGIN_NAMESPACE \
  namespace fmt {           \
  inline namespace ejk_private {
#define FMT_END_NAMESPACE \
  }                       \
  }
#include <fmt/format.h>
