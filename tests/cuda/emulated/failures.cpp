// SPDX-License-Identifier: Apache-2.0
#include "failures.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace emulated {
namespace {

struct Failure {
  char call[64] = "";
  int nth = 0, status = 0;
};

Failure asked_for() {
  Failure failure;
  const char* text = std::getenv("FAKE_CUDA_FAIL");
  if (text == nullptr || *text == '\0') return {};
  if (std::sscanf(text, "%63[^:]:%d:%d", failure.call, &failure.nth, &failure.status) == 3)
    return failure;
  std::fprintf(stderr, "FAKE_CUDA_FAIL=%s: expected CALL:NTH:STATUS\n", text);
  std::abort();
}

std::mutex mutex;
Failure failure = asked_for();
std::map<std::string, int> calls;

}  // namespace

int injected_failure(const char* call) {
  const std::scoped_lock lock(mutex);
  return ++calls[call] == failure.nth && call == std::string(failure.call) ? failure.status : 0;
}

void forget_calls() {
  const std::scoped_lock lock(mutex);
  calls.clear();
  failure = asked_for();
}

int calls_of(const char* call) {
  const std::scoped_lock lock(mutex);
  return calls[call];
}

}  // namespace emulated
