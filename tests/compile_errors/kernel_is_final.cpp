// expect: the kernel must not be final
#include <ejk/ejk.h>

struct Broken final {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
