// expect: the kernel has no gradient
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float run(const Config&, float x) const { return x; }
};

void call(ejk::Executor& executor) {
  float x = 1;
  executor.vjp(Broken{}, x);
}
