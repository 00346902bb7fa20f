// expect: numerics must be
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  int numerics(const ejk::Invocation&, const Config&) const { return 1; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
