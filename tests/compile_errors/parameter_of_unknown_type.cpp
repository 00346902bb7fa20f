// expect: is of a type the library does not know
#include <ejk/ejk.h>

class Opaque {
 public:
  explicit Opaque(int x) : x_(x) {}

 private:
  int x_;
};
struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run(const Config&, Opaque) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, Opaque(1)); }
