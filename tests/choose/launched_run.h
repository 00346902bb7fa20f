// SPDX-License-Identifier: Apache-2.0
// A run whose launch decides where its configs come from, and kernels that show which they got.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fakes.h"

namespace fakes {

// More threads than this machine has.
struct Threaded : Show {
  static constexpr std::string_view op_id = "threaded";
  struct Config {
    int threads = 0;
  };
  void run(const Config& c, std::span<const float>, ejk::Out<std::span<float>> y) const {
    for (float& v : *y) v = static_cast<float>(c.threads);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {1}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {4096}}; }
};

class LaunchedRun : public testing::Test {
 protected:
  template <class Kernel = Show>
  float run(const ejk::Executor& executor) {
    executor(Kernel{}, x, y);
    return y[0];
  }
  // An entry of the call that `run` makes.
  template <class Kernel = Show>
  ejk::Entry entry(ejk::Value config) {
    const auto inv = ejk::Executor(setup.options()).describe(Kernel{}, x, y);
    ejk::Entry out;
    out.id = {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
    out.config = std::move(config);
    out.environment = inv.device->environment;
    out.evidence.samples = 10;
    return out;
  }
  static ejk::Value block(int size) { return ejk::Value::object({{"block", size}}); }
  static std::string error_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const ejk::Error& error) {
      return error.what();
    }
    return "";
  }

  fakes::Setup setup;
  std::vector<float> x = std::vector<float>(8, 1), y = std::vector<float>(8, 0);
};

}  // namespace fakes
