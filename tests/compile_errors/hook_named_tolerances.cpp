// expect: did you mean tolerance
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  ejk::Tolerance tolerances(ejk::DType) const { return {}; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
