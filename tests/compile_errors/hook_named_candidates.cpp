// expect: did you mean candidate_cfgs
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  std::vector<Config> candidates(const ejk::Invocation&) const { return {}; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
