// expect: needs `R run(const Config&, arguments...) const`
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run_opencl(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
