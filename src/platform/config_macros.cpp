// SPDX-License-Identifier: Apache-2.0
// Numbers as macros that OpenCL C and CUDA read as the same numbers.
#include <ejk/detail/config_macros.h>

#include <cmath>
#include <iterator>
#include <limits>

#include "base/format.h"

namespace ejk::detail {
namespace {

auto at_end(std::string& text) { return std::back_inserter(text); }

// In parentheses: "A -B" with a negative B, and "-B".
template <class T>
void append_floating(std::string& to, std::string_view name, T value, std::string_view suffix) {
  if (std::isfinite(value))
    fmt::format_to(at_end(to), "#define {} ({:a}{})\n", name, value, suffix);
  else if (std::isnan(value)) fmt::format_to(at_end(to), "#define {} NAN\n", name);
  else fmt::format_to(at_end(to), "#define {} ({}INFINITY)\n", name, value < 0 ? "-" : "");
}

}  // namespace

void append_macro(std::string& to, std::string_view name, int64_t value) {
  if (value >= 0) fmt::format_to(at_end(to), "#define {} {}\n", name, value);
  else if (value > std::numeric_limits<int64_t>::min())
    fmt::format_to(at_end(to), "#define {} ({})\n", name, value);
  else fmt::format_to(at_end(to), "#define {} ({} - 1)\n", name, value + 1);  // has no literal
}

void append_macro(std::string& to, std::string_view name, uint64_t value) {
  const bool large = value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  fmt::format_to(at_end(to), "#define {} {}{}\n", name, value, large ? "ul" : "");
}

void append_macro(std::string& to, std::string_view name, float value) {
  append_floating(to, name, value, "f");
}

void append_macro(std::string& to, std::string_view name, double value) {
  append_floating(to, name, value, "");
}

}  // namespace ejk::detail
