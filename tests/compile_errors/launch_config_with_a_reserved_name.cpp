// expect: is a macro that compilers or ejk reserve
#include <string>

#include <ejk/gpu.h>

struct View {
  const ejk::Device* device;
  void* memory;
  size_t offset;
};
struct Broken {
  int ejk_group = 1;
};
constexpr ejk::Source source{"__kernel void k(__global int* x) {}"};

void call(const View& view) {
  static_cast<void>(view);
  ejk::launch(source, "k", Broken{}, {}, view);
}
