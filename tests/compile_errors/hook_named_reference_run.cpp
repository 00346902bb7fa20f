// expect: did you mean reference
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  void reference_run(int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
