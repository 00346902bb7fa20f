// expect: does not convert to the parameter
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, std::string("1")); }
