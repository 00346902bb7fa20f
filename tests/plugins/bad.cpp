// SPDX-License-Identifier: Apache-2.0
// Kernels that end the process they are tuned in, each in its own way.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include <ejk/registry.h>

namespace {

// A guarded first run happens in a child of the process that loaded this.
const pid_t loaded_by = getpid();
bool is_guarded() { return getpid() != loaded_by; }

void end_process() { raise(SIGSEGV); }
void leave() { std::_Exit(7); }
void hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}
void chatter() {
  static int times = 0;
  if (times++ < 3) std::puts("what a kernel prints is no answer"), std::fflush(stdout);
}

// Not a std::exception.
[[noreturn]] void complain() { throw "a text and no more"; }

// The config 2 does it at its first run outside of the guard.
template <const char* Name, void (*Act)()>
struct Bad {
  static constexpr std::string_view op_id = Name, version = "1";
  struct Config {
    int block = 1;
  };
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    if (c.block == 2 && !is_guarded()) Act();
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = 2 * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}, {3}}; }
};

// The config 2 does it wherever it runs.
template <const char* Name, void (*Act)()>
struct Worse : Bad<Name, Act> {
  using Config = typename Bad<Name, Act>::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    if (c.block == 2) Act();
    Bad<Name, Act>::run({1}, x, y);
  }
};

// Whatever is tried: there is no config to suspect.
template <const char* Name, void (*Act)()>
struct Hopeless : Bad<Name, Act> {
  using Config = typename Bad<Name, Act>::Config;
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    Act();
    return {{1}};
  }
};

constexpr char crash[] = "bad.crash", always[] = "bad.always", quit[] = "bad.exit",
               wait[] = "bad.hang", talk[] = "bad.print", crash_hook[] = "bad.hook.crash",
               quit_hook[] = "bad.hook.exit", wait_hook[] = "bad.hook.hang",
               throw_hook[] = "bad.hook.throw", unmade[] = "bad.unmade";

// Cannot even be made.
struct Unmade : Bad<unmade, chatter> {
  Unmade() { complain(); }
};

}  // namespace

EJK_REGISTER(Bad<crash, end_process>);
EJK_REGISTER(Worse<always, end_process>);
EJK_REGISTER(Bad<quit, leave>);
EJK_REGISTER(Bad<wait, hang>);
EJK_REGISTER(Bad<talk, chatter>);
EJK_REGISTER(Hopeless<crash_hook, end_process>);
EJK_REGISTER(Hopeless<quit_hook, leave>);
EJK_REGISTER(Hopeless<wait_hook, hang>);
EJK_REGISTER(Hopeless<throw_hook, complain>);
EJK_REGISTER(Unmade);
