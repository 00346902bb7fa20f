// expect: a launch needs a device view
#include <string>

#include <ejk/gpu.h>

struct View {
  const ejk::Device* device;
  void* memory;
  size_t offset;
};
struct Broken {
  int group = 1;
};
constexpr ejk::Source source{"__kernel void k(__global int* x) {}"};

void call(const View& view) {
  static_cast<void>(view);
  ejk::launch(source, "k", Broken{}, {}, 1);
}
