// expect: does not convert to the parameter
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, std::span<float>) const {}
};

void call(ejk::Executor& executor) {
  const std::vector<float> x(1);
  executor(Broken{}, x);
}
