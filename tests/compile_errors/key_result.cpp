// expect: key must take run's parameters without the config
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  int* key(int) const { return nullptr; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
