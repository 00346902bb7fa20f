// expect: heuristic_cfg must be
#include <ejk/ejk.h>

struct ClArray {
  static constexpr ejk::Platform ejk_platform = ejk::Platform::opencl;
  int size = 0;
};
void ejk_key(ejk::KeySink& key, const ClArray& a) { key("size", a.size); }
struct Broken {
  static constexpr std::string_view op_id = "broken";
  struct Config {};
  struct Tile {
    int rows = 1;
  };
  void run_gpu(const Tile&, ClArray) const {}
  Config heuristic_cfg_gpu(const ejk::Invocation&) const { return {}; }
};

void call(ejk::Executor& executor) { executor(Broken{}, ClArray{}); }
