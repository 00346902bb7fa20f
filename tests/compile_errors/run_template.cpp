// expect: is overloaded or a template
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  template <class T>
  void run(const Config&, T) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
