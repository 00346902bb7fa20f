// expect: is_valid must be
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  bool is_valid(const ejk::Invocation&, const Config&) const { return true; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
