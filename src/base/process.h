// SPDX-License-Identifier: Apache-2.0
// Small things that processes are asked for.
#pragma once

#include <string.h>
#include <unistd.h>

#include <cstddef>
#include <string>

namespace ejk::base {

inline std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : "SIG" + std::string(name);
}

inline size_t page_size() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace ejk::base
