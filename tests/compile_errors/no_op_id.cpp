// expect: needs `static constexpr std::string_view op_id
#include <ejk/ejk.h>

struct Broken {
  struct Config {};
  void run(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
