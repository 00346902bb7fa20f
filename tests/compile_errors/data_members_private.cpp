// expect: data members that cannot be found
#include <ejk/ejk.h>

class Broken {
 public:
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, int) const {}

 private:
  int hidden = 0;
};

void call(ejk::Executor& executor) { executor(Broken{}, 1); }
