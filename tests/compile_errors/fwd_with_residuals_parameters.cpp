// expect: fwd_with_residuals must be const and take run's parameters
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float run(const Config&, float x) const { return x; }
  std::pair<float, float> fwd_with_residuals(float x) const { return {x, x}; }
  std::tuple<float> vjp(const Config&, float, float) const { return {}; }
};

void call(ejk::Executor& executor) {
  float x = 1;
  executor.vjp(Broken{}, x);
}
