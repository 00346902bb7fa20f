// expect: by non-const reference
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, std::vector<float>&) const {}
};

void call(ejk::Executor& executor) {
  const std::vector<float> x;
  executor(Broken{}, x);
}
