// SPDX-License-Identifier: Apache-2.0
// The C++ sides of bench/ops.py: this library, and libraries that are loaded by name.
//
// One line in, one line out, words apart by blanks:
//   set ID FAMILY WORD...   makes a case; "ok NOTE" or "no REASON"
//   run ID N                runs it once, then N times: "CPU WALL", seconds of the N runs
//   clear                   drops all cases: "ok"
//   target NAME             before any case: no better instruction set than avx2, sse4; "ok"
#include <time.h>

#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include <hwy/targets.h>

#include "ops/attention.h"
#include "ops/case.h"
#include "ops/matmul.h"
#include "ops/norms.h"

namespace {

// One row per family; its header says which words it takes.
const std::map<std::string, bench::Case (*)(const bench::Words&)> families = {
    {"attention", bench::make_attention},
    {"matmul", bench::make_matmul},
    {"sgemm", bench::make_sgemm},
    {"grouped_matmul", bench::make_grouped_matmul},
    {"grouped_sgemm", bench::make_grouped_sgemm},
    {"rms_norm", bench::make_norm},
    {"layer_norm", bench::make_norm},
    {"softmax", bench::make_norm},
    {"memcpy", bench::make_memcpy},
};

double clock_seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::map<std::string, bench::Case> cases;

std::string set_case(const bench::Words& words) {
  const bench::Words rest(words.begin() + 2, words.end());
  const auto family = families.find(bench::word(rest, 0));
  if (family == families.end()) return "no such family: " + rest[0];
  cases[words[1]] = family->second(rest);
  return "ok " + cases[words[1]].note;
}

std::string run_case(const bench::Words& words) {
  const bench::Case& c = cases.at(bench::word(words, 1));
  const int64_t times = bench::number(words, 2);
  c.run();
  const double cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID), wall = clock_seconds(CLOCK_MONOTONIC);
  for (int64_t i = 0; i < times; ++i) c.run();
  std::ostringstream out;
  out.precision(9);
  out << clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu << ' '
      << clock_seconds(CLOCK_MONOTONIC) - wall;
  return out.str();
}

std::string limit_target(const std::string& name) {
  const int64_t wanted = name == "avx2" ? HWY_AVX2 : name == "sse4" ? HWY_SSE4 : 0;
  if (wanted == 0) return "no such target: " + name;
  // Better instruction sets have lower bits.
  hwy::DisableTargets(wanted - 1);
  return "ok";
}

std::string answer(const std::string& line) {
  std::istringstream in(line);
  bench::Words words;
  for (std::string w; in >> w;) words.push_back(w);
  const std::string& what = bench::word(words, 0);
  if (what == "set") return set_case(words);
  if (what == "run") return run_case(words);
  if (what == "target") return limit_target(bench::word(words, 1));
  if (what == "clear") return cases.clear(), "ok";
  return "no such request: " + what;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::string reply;
    try {
      reply = answer(line);
    } catch (const std::exception& e) {
      reply = std::string("no ") + e.what();
    }
    for (char& c : reply)
      if (c == '\n') c = ' ';
    std::cout << reply << std::endl;
  }
}
