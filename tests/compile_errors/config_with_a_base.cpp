// expect: names its fields with EJK_CONFIG
#include <ejk/ejk.h>

struct Base {
  int inherited = 0;
};
struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config : Base {
    int own = 0;
  };
  void run(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
