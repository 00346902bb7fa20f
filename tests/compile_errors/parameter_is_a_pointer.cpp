// expect: is of a type the library does not know
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, float*) const {}
};

void call(ejk::Executor& executor) {
  float x = 0;
  executor(Broken{}, &x);
}
