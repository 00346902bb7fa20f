// expect: an owning temporary
#include <ejk/ejk.h>

struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  using X = ejk::Named<"x", std::span<const float>>;
  float run(const Config&, X x) const { return x.value[0]; }
  float custom_vjp(const Config&, const std::tuple<X>&, float dy) const { return dy; }
};

void call(ejk::Executor& executor) {
  static_cast<void>(executor.vjp(Broken{}, ejk::kw("x", std::vector<float>(3))));
}
