// expect: did you mean heuristic_cfg
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  Config heuristic_config(const ejk::Invocation&) const { return {}; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
