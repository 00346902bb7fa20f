// SPDX-License-Identifier: Apache-2.0
// What the benchmark programs share: interleaved samples, medians, the closing JSON line.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sched.h>
#include <unistd.h>

#include <ejk/value.h>

namespace bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The value that this share of them lies below.
inline double quantile(std::vector<double> v, double share) {
  if (v.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto at = static_cast<size_t>(share * static_cast<double>(v.size()));
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(at), v.end());
  return v[at];
}

inline double median(std::vector<double> v) { return quantile(std::move(v), 0.5); }

// Runs every function once per round, in turn, starting with another one each round. Gives the
// seconds of each function, round by round.
inline std::vector<std::vector<double>> interleave(
    const std::vector<std::function<void()>>& functions, int rounds) {
  std::vector<std::vector<double>> samples(functions.size());
  for (const auto& f : functions) f();  // warm-up
  for (int r = 0; r < rounds; ++r)
    for (size_t i = 0; i < functions.size(); ++i) {
      const size_t which = (i + static_cast<size_t>(r)) % functions.size();
      const double start = seconds();
      functions[which]();
      samples[which].push_back(seconds() - start);
    }
  return samples;
}

// The number that follows `name` on the command line.
inline double option(int argc, char** argv, std::string_view name, double otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) return std::atof(argv[i + 1]);
  return otherwise;
}

// The last line of every benchmark.
inline void print_json(std::vector<ejk::Value::Member> figures) {
  std::printf("%s\n", ejk::stable_json(ejk::Value::object(std::move(figures))).c_str());
}

// The calling thread stays on the i-th of the cores this program may use, counted round.
inline void pin_to_core(size_t i) {
  static const cpu_set_t allowed = [] {
    cpu_set_t all;
    sched_getaffinity(getpid(), sizeof all, &all);
    return all;
  }();
  size_t left = i % static_cast<size_t>(CPU_COUNT(&allowed)), core = 0;
  while (!CPU_ISSET(core, &allowed) || left-- > 0) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
}

// Keeps the compiler from knowing what is in memory.
inline void clobber(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

}  // namespace bench
