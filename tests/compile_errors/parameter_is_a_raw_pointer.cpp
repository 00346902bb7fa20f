// expect: is of a type the library does not know
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, const float* x, float* y, int n) const {}
};

void call(ejk::Executor& executor, const float* x, float* y) { executor(Broken{}, x, y, 8); }
