// expect: names its fields with EJK_CONFIG
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {
    int a0 = 0, a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0, a6 = 0, a7 = 0, a8 = 0, a9 = 0, a10 = 0,
        a11 = 0, a12 = 0, a13 = 0, a14 = 0, a15 = 0, a16 = 0, a17 = 0, a18 = 0, a19 = 0, a20 = 0,
        a21 = 0, a22 = 0, a23 = 0, a24 = 0;
  };
  void run(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
