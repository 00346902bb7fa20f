// expect: reference must take run's parameters without the config
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float run(const Config&, int) const { return 0; }
  double reference(int) const { return 0; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
