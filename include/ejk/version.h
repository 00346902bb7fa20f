// SPDX-License-Identifier: Apache-2.0
// The version: of these headers, and of the library that a program runs with. The three numbers
// stand here and nowhere else; the build, the Python package and the documents read them.
#pragma once

#include <string_view>

#include <ejk/detail/export.h>

// The three numbers.
#define EJK_VERSION_MAJOR 0
#define EJK_VERSION_MINOR 1
#define EJK_VERSION_PATCH 0

// For comparisons: #if EJK_VERSION_NUMBER >= EJK_MAKE_VERSION(0, 2, 0)
#define EJK_MAKE_VERSION(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define EJK_VERSION_NUMBER EJK_MAKE_VERSION(EJK_VERSION_MAJOR, EJK_VERSION_MINOR, EJK_VERSION_PATCH)

#define EJK_DETAIL_TEXT_OF(value) #value
#define EJK_DETAIL_VERSION(major, minor, patch) \
  EJK_DETAIL_TEXT_OF(major) "." EJK_DETAIL_TEXT_OF(minor) "." EJK_DETAIL_TEXT_OF(patch)
// The version of the headers as a text: "1.2.3".
#define EJK_VERSION EJK_DETAIL_VERSION(EJK_VERSION_MAJOR, EJK_VERSION_MINOR, EJK_VERSION_PATCH)

namespace EJK_EXPORT ejk {

// The version of the library that runs. It differs from EJK_VERSION if a program was compiled with
// the headers of another one.
std::string_view library_version();

}  // namespace ejk
