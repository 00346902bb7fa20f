// SPDX-License-Identifier: Apache-2.0
// A program whose calls are not tuned in the background pays nothing for that when it forks.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "fakes.h"

namespace {

int fork_handlers = 0;

using Handler = void (*)();

}  // namespace

// What pthread_atfork calls.
extern "C" int __register_atfork(Handler prepare, Handler parent, Handler child, void* object) {
  ++fork_handlers;
  using Register = int (*)(Handler, Handler, Handler, void*);
  static const auto real = reinterpret_cast<Register>(::dlsym(RTLD_NEXT, "__register_atfork"));
  return real(prepare, parent, child, object);
}

namespace {

// The only test of this program: a handler stays for good.
TEST(ForkHandler, IsMadeByTheFirstCallThatIsToBeTunedInAProcess) {
  fakes::Setup setup;
  const std::vector<float> x(8);
  std::vector<float> y(8);
  ejk::Executor(setup.options())(fakes::Show{}, x, y);
  ejk::SelectorOptions options = setup.options();
  options.policy->cache_miss_fallback = ejk::Fallback::background;
  options.is_busy = [] { return true; };
  const ejk::Executor executor(options);
  ejk::SelectorOptions only_idle = options;
  only_idle.policy->background_share = 0;
  ejk::Executor{only_idle}(fakes::Show{}, x, y);
  const int before = fork_handlers;
  executor(fakes::Show{}, x, y);
  EXPECT_EQ(fork_handlers, before + 1);
  const std::vector<float> longer(9);
  executor(fakes::Show{}, longer, y);
  EXPECT_EQ(fork_handlers, before + 1);
}

}  // namespace
