// expect: is of a type the library does not know
#include <ejk/ejk.h>

struct Slice {
  float* data = nullptr;
  int size = 0;
};
struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, Slice) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, Slice{}); }
