// expect: takes an argument of another platform
#include <ejk/ejk.h>

struct ClArray {
  static constexpr ejk::Platform ejk_platform = ejk::Platform::opencl;
  int size = 0;
};
struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, std::span<const float>) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, ClArray{}); }
