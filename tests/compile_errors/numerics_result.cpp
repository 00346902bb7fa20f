// expect: numerics must be
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  const void* numerics(const Config& config) const { return &config; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
