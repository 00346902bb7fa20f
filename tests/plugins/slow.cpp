// SPDX-License-Identifier: Apache-2.0
// Kernels whose tuning takes long enough to be interrupted.
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include <ejk/registry.h>

namespace {

struct Slow {
  static constexpr std::string_view op_id = "plugin.slow", version = "1";
  struct Config {
    int block = 1;
  };
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(40 + c.block % 3));
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = 2 * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    std::vector<Config> out;
    for (int block = 1; block <= 100; ++block) out.push_back({block});
    return out;
  }
};

}  // namespace

EJK_REGISTER(Slow);
