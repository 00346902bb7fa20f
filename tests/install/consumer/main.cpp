// SPDX-License-Identifier: Apache-2.0
// A kernel of a user's own, called through an executor of the installed library.
#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

#include <ejk/ejk.h>
#include <ejk/gpu.h>
#include <ejk_kernels/twice_cl.h>

struct Saxpy {  // y += alpha x
  static constexpr std::string_view op_id = "consumer_saxpy", version = "1";
  struct Config {
    int block = 1024;
  };

  void run(const Config& config, ejk::Unkeyed<float> alpha, std::span<const float> x,
           std::span<float> y) const {
    const auto block = static_cast<size_t>(config.block);
    for (size_t begin = 0; begin < y.size(); begin += block)
      for (size_t i = begin; i < y.size() && i < begin + block; ++i) y[i] += alpha * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    return {{256}, {1024}, {4096}};
  }
};

// Of many things one, so that their headers are compiled with this project's warnings.
struct Square {
  static constexpr std::string_view op_id = "consumer_square", version = "1";
  struct Config {
    int block = 1;
    EJK_CONFIG(Config, block)
  };
  using In = ejk::StridedView<const float, 1>;
  using Result = ejk::Out<ejk::View<float, 1>>;

  void run(const Config&, In x, Result y, ejk::Named<"scale", float, 1.f> scale) const {
    for (int64_t i = 0; i < x.shape[0]; ++i) (*y)(i) = scale * x(i) * x(i);
  }
  auto key(const In& x, const Result& y, float) const {
    return std::tuple(ejk::bucketed(x), ejk::bucketed(y));
  }
  bool is_valid(const Config& config, const ejk::Invocation&) const { return config.block > 0; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation&) const {
    return ejk::space<Config>().param(&Config::block, {1, 2});
  }
};
EJK_REGISTER(Square);

// A file that ejk_add_kernels has embedded, as it is.
constexpr ejk::Source twice{"twice.cl", ejk_kernels::twice_cl};
static_assert(std::string_view(ejk_kernels::twice_cl).starts_with("// SPDX"));
static_assert(std::string_view(ejk_kernels::twice_cl).ends_with("\\ and ; [ ] $ { }\n"));

bool squares(const ejk::Executor& executor) {
  const std::vector<float> x(6, 3.f);
  std::vector<float> y(6);
  executor(Square{}, x, y, ejk::kw("scale", 2.f));
  const auto rows = ejk::Tensor::of<float>({2, 3}, x), squared = ejk::Tensor::of<float>({2, 3});
  ejk::vmap_with_config(executor, Square{}, 0, 0, ejk::none)(rows, squared, 2.f);
  return y[5] == 18 && squared.data<float>()[5] == 18;
}

int main() {
  const std::vector<float> x(5000, 1.f);
  std::vector<float> y(5000, 1.f);
  ejk::Executor executor;
  executor(Saxpy{}, 2.f, x, y);  // tunes on copies, then runs once on y
  executor(Saxpy{}, Saxpy::Config{.block = 256}, 2.f, x, y);
  for (float v : y)
    if (v != 5.f) return std::printf("expected 5, got %g\n", static_cast<double>(v)), 1;
  if (!squares(executor)) return std::puts("expected 18"), 1;
  const auto [config, origin] = executor.choose_config(Saxpy{}, 2.f, x, y);
  std::printf("block %d\n", config.block);
  return 0;
}
