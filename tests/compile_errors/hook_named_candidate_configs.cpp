// expect: did you mean candidate_cfgs
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_configs(const ejk::Invocation&) const { return std::vector<Config>(); }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
