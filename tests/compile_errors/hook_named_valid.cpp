// expect: did you mean is_valid
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  bool valid(const Config&, const ejk::Invocation&) const { return true; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
