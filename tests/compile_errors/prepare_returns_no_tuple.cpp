// expect: prepare must return a std::tuple
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  int prepare(float x) const { return static_cast<int>(x); }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1.f); }
