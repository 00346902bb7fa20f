// expect: is_valid must be
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  void is_valid(const Config&, const ejk::Invocation&) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
