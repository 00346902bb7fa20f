// expect: does not convert to the parameter
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, ejk::View<const float, 2>) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, ejk::View<const float, 3>{}); }
