// SPDX-License-Identifier: Apache-2.0
// A shared library of kernels, as a user builds one.
#include <span>
#include <vector>

#include <ejk/registry.h>

namespace {

struct Shifted {
  static constexpr std::string_view op_id = "plugin.shifted", version = "1";
  struct Config {
    int block = 1;
  };
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = x[i] + 1 + 0.f * float(c.block);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

}  // namespace

EJK_REGISTER(Shifted);
