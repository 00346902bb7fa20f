// expect: has no place for the kernel's prepare
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float run(const Config&, float x) const { return x; }
  std::tuple<float> prepare(float x) const { return {2 * x}; }
};

void call(ejk::Executor& executor) {
  ejk::vmap_with_config(executor, Broken{}, 0)(std::vector<float>{1, 2});
}
