// expect: that of a run_{platform} may be another struct
#include <ejk/ejk.h>

struct ClArray {
  static constexpr ejk::Platform ejk_platform = ejk::Platform::opencl;
  int size = 0;
};
void ejk_key(ejk::KeySink& key, const ClArray& a) { key("size", a.size); }
struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  void run_gpu(ClArray) const {}
};

void call(ejk::Executor& executor) { executor(Broken{}, ClArray{}); }
