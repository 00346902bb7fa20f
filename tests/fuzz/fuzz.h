// SPDX-License-Identifier: Apache-2.0
// What the fuzzers share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace fuzz {

inline void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// Each fuzzer defines it: what must hold for any bytes.
void check(std::string_view bytes);

}  // namespace fuzz
