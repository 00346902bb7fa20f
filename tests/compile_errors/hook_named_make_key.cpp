// expect: did you mean key
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}
  int make_key(int n) const { return n / 2; }
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
