// expect: first parameter of the kernel's run must be `const Config&`
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
