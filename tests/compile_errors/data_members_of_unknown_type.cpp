// expect: data members that cannot be found
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  float* workspace = nullptr;
  void run(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
