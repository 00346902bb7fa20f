// SPDX-License-Identifier: Apache-2.0
// What the tests of tunings on devices share: a kernel with every kind of bad config, and processes
// that have not touched a driver yet.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include <ejk/ejk.h>
#include <ejk/gpu.h>

#include "store_fixture.h"

namespace ejk::testing {

enum class Act {
  nothing,
  is_endless,
  is_wild,
  is_wrong,
  is_no_code,
  writes_beside,
  takes_local_memory,
  kills_its_process,
};

inline pid_t host = -1;  // the process under test; workers know it from before their fork

// y = 2 x.
struct Twice {
  static constexpr std::string_view op_id = "twice";
  struct Config {
    int group = 16;
    Act act = Act::nothing;
  };
  static constexpr Source source{"twice.cl", R"(
    __kernel EJK_GROUP(GROUP, 1, 1)
    void twice(int n, __global const float* restrict x, __global float* y) {
      const int i = get_global_id(0);
#if ACT == 1
      __global volatile float* never = y;
      while (never[0] != 12345.f) never[0] = 0.f;
#elif ACT == 2
      __global volatile float* nowhere = (__global volatile float*)(size_t)4096;
      nowhere[i] = 1.f;
#elif ACT == 4
      no code at all;
#elif ACT == 5
      if (i < 3) y[n + i] = 7.f;
#elif ACT == 6
      __local volatile float large[1 << 26];
      large[i * 4096] = x[0];
      barrier(CLK_LOCAL_MEM_FENCE);
      y[0] = large[(i + 1) * 4096];
#endif
      if (i < n) y[i] = (ACT == 3 ? 3.f : 2.f) * x[i];
    })"};

  void run_gpu(const Config& c, DeviceView<const float, 1> x, Out<DeviceView<float, 1>> y) const {
    if (c.act == Act::kills_its_process && getpid() != host) kill(getpid(), SIGKILL);
    launch(source, "twice", c, {.groups = {ceil_div(x.size(), c.group)}, .items = {c.group}},
           static_cast<int>(x.size()), x, y.view);
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{}, {8}, {4}}; }
};

inline std::vector<Twice::Config> bad_configs() {
  return {{8},
          {16, Act::is_endless},
          {16, Act::is_wild},
          {16, Act::is_wrong},
          {16, Act::is_no_code},
          {16, Act::writes_beside},
          {1 << 20},
          {4}};
}

inline Tensor floats(int64_t n, const Device& device) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(i) + 1);
  return Tensor::of<float>({n}, std::span(values)).to(device);
}

inline float last_of(const Tensor& tensor) {
  const Tensor here = tensor.to(cpu_device());
  return here.data<float>()[here.size() - 1];
}

struct Tuned {
  std::string guard, clock;
  std::map<std::string, std::string> kinds;  // "" is not rejected
  std::map<std::string, std::string> why;
  double compile_seconds = 0;
  bool complete = false;
  std::string warnings;

  static std::string name(Twice::Config c) { return stable_json(make_config(c).to_value()); }
  const std::string& kind_of(Twice::Config c) const { return kinds.at(name(c)); }
  const std::string& why_of(Twice::Config c) const { return why.at(name(c)); }
};

// Enough for every compilation, however busy the machine is.
inline AutotunePolicy patient() { return AutotunePolicy{.budget_seconds = 600}; }

template <class K>
Tuned tune(const Device& device, const K& kernel, std::vector<Twice::Config> configs,
           int64_t n = 100, ProgressSink on_progress = {},
           SelectorOptions options = {.policy = patient()}) {
  Warnings warnings;
  options.on_warning = warnings.sink();
  options.on_progress = std::move(on_progress);
  const Executor executor(std::move(options));
  const Tensor x = floats(n, device), y = floats(n, device);
  const Entry entry = executor.tune_among(std::move(configs), kernel, x, y).entry;
  Tuned tuned;
  tuned.guard = entry.evidence.guard, tuned.clock = entry.evidence.clock;
  tuned.complete = entry.evidence.complete;
  for (const Measurement& m : entry.candidates) {
    tuned.kinds[stable_json(m.config)] = m.kind;
    tuned.why[stable_json(m.config)] = m.why;
    tuned.compile_seconds += m.compile_seconds;
  }
  executor(kernel, x, y);
  EXPECT_EQ(last_of(y), 2 * static_cast<float>(n)) << "the process goes on with the device";
  tuned.warnings = warnings.text();
  return tuned;
}

// Runs `body` in a process that has not touched a driver, with a store of its own. False if
// something failed there.
inline bool in_new_process(const std::function<void()>& body) {
  const Scratch store;
  return child_succeeded(start_child([&] {
    host = getpid();
    setenv("EJKERNEL_PERSISTENT_CACHE_DIR", (store / "own").c_str(), 1);
    body();
    std::fflush(nullptr);
    return !::testing::Test::HasFailure();
  }));
}

// How often this process has forked since the first call.
inline int forks() {
  static int count = 0;
  static const int once = pthread_atfork([] { ++count; }, nullptr, nullptr);
  return count + once;
}

}  // namespace ejk::testing
