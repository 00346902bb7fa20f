// expect: the kernel's Config must be made of
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {
    float* data = nullptr;
  };
  void run(const Config&, int) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
