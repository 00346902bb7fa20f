// SPDX-License-Identifier: Apache-2.0
// fmt for the library's own files. It is compiled once, in format.cpp: header-only it takes up to
// 3 s of CPU in each of 25 files. A namespace of its own keeps it apart from the fmt of a program.
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
