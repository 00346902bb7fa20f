// SPDX-License-Identifier: Apache-2.0
// What a compiler's log is about, in one line.
#pragma once

#include <string>

namespace ejk::detail {

// The line that says what is wrong, else the first that says anything.
inline std::string first_error(const std::string& log) {
  size_t at = log.find("error");
  if (at == log.npos) at = log.find_first_not_of(" \t\r\n");
  if (at == log.npos) return "no reason";
  const size_t begin = log.rfind('\n', at) + 1;  // npos + 1 is the first line
  return log.substr(begin, log.find('\n', at) - begin);
}

}  // namespace ejk::detail
