// expect: a batched call would lose what run writes
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, float x, float& y) const { y = 2 * x; }
};

void call(ejk::Executor& executor) {
  std::vector<float> y(2);
  ejk::vmap_with_config(executor, Broken{}, 0, 0)(std::vector<float>{1, 2}, y);
}
