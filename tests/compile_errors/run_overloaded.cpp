// expect: is overloaded or a template
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  void run(const Config&, float) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
