// expect: an owning temporary
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float run(const Config&, std::span<const float> x) const { return x[0]; }
  std::tuple<float> custom_vjp(const Config&, const std::tuple<std::span<const float>>&,
                               float) const {
    return {};
  }
};

void call(ejk::Executor& executor) { executor.vjp(Broken{}, std::vector<float>{1, 2}); }
