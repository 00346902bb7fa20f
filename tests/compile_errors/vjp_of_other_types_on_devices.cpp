// expect: fwd_with_residuals or vjp returns another type on each platform
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  using Forward = std::pair<float, int>;
  float run(const Config&, const ejk::Tensor&) const { return 0; }
  float run_gpu(const Config&, const ejk::Tensor&) const { return 0; }
  Forward fwd_with_residuals(const Config&, const ejk::Tensor&) const { return {}; }
  Forward fwd_with_residuals_gpu(const Config&, const ejk::Tensor&) const { return {}; }
  float vjp(const Config&, int, float) const { return 0; }
  int vjp_gpu(const Config&, int, float) const { return 0; }
};

void call(ejk::Executor& executor, ejk::Tensor& x) { executor.vjp(Broken{}, x).second(1.f); }
