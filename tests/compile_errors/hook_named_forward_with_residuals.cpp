// expect: did you mean fwd_with_residuals
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float run(const Config&, float x) const { return x; }
  std::pair<float, float> forward_with_residuals(const Config&, float x) const { return {x, x}; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1.f); }
