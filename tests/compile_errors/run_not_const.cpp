// expect: run must be const (or static)
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
