// SPDX-License-Identifier: Apache-2.0
// A shared library of kernels, as a user builds one.
#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
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

// Sums of rows of different lengths. Row i has the values from offsets[i] to offsets[i + 1].
struct RowSums {
  static constexpr std::string_view op_id = "plugin.row_sums", version = "1";
  struct Config {
    int block = 1;
  };
  void run(const Config&, std::span<const int32_t> offsets, std::span<const float> values,
           ejk::Out<std::span<float>> sums) const {
    if (offsets.front() != 0 || offsets.back() != std::ssize(values) ||
        !std::ranges::is_sorted(offsets))
      throw std::invalid_argument("these are no offsets of rows");
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      (*sums)[i] =
          std::accumulate(values.begin() + offsets[i], values.begin() + offsets[i + 1], 0.f);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};

}  // namespace

EJK_REGISTER(Shifted);
EJK_REGISTER(RowSums);
