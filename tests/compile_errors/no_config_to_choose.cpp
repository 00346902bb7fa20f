// expect: needs a nested type `Config`
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  void run(int) const {}
};

void call(ejk::Executor& executor) { static_cast<void>(executor.choose_config(Broken{}, 1)); }
