// expect: is overloaded or a template
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float run(const Config&, int) const { return 0; }
  float run(const Config&, float) const { return 0; }
};

void call(ejk::Executor& executor) { static_cast<void>(executor.tune(Broken{}, 1)); }
