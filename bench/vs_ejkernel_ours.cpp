// SPDX-License-Identifier: Apache-2.0
// Our side of bench/vs_ejkernel.py: answers "choose N" and "put N" with the nanoseconds of N calls.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/ejk.h>
#include <fmt/core.h>

namespace {

struct Axpy {  // y += alpha x
  static constexpr std::string_view op_id = "axpy", version = "1";
  struct Config {
    int block = 128;
    int threads = 1;
  };
  void run(const Config&, ejk::Unkeyed<float> alpha, ejk::View<const float, 2> x,
           ejk::View<float, 2> y) const {
    const std::span<float> out = y.span();
    for (size_t i = 0; i < out.size(); ++i) out[i] += alpha * x.data[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{}}; }
};

template <class F>
int64_t nanoseconds_of(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
}

// As much as the original keeps of a choice: device, op, key and config.
ejk::Entry entry(int64_t number) {
  ejk::Entry e;
  e.id = {ejk::device_fingerprint(), "axpy@v1", fmt::format("{:016x}", number), ""};
  e.config = ejk::Value::object({{"block", 128}, {"threads", 1}});
  return e;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "usage: vs_ejkernel_ours DIRECTORY ENTRIES\n", 2;
  ejk::DirectoryStore store(argv[1]);
  int64_t entries = 0;
  for (const int64_t wanted = std::atoll(argv[2]); entries < wanted; ++entries)
    if (!store.put(entry(entries))) return 1;

  const auto x = ejk::Tensor::of<float>({128, 128}), y = ejk::Tensor::of<float>({128, 128});
  const auto xv = x.view<float, 2>(), yv = y.view<float, 2>();
  // As on the other side: no persistent tier, and a choice that was tuned once, here among one.
  const ejk::Executor executor{ejk::SelectorOptions{}};
  executor.choose_config(Axpy{}, 2.f, xv, yv);

  std::cout << "ready" << std::endl;
  std::string what;
  for (int64_t n = 0; std::cin >> what >> n;) {
    int64_t sum = 0, elapsed = 0;
    bool kept = true;
    if (what == "choose") {
      elapsed = nanoseconds_of([&] {
        for (int64_t i = 0; i < n; ++i)
          sum += executor.choose_config(Axpy{}, 2.f, xv, yv).config.block;
      });
      kept = sum == 128 * n;
    } else {
      std::vector<ejk::Entry> more;
      for (int64_t i = 0; i < n; ++i) more.push_back(entry(entries++));
      elapsed = nanoseconds_of([&] {
        for (const ejk::Entry& e : more) kept &= store.put(e);
      });
    }
    if (!kept) return std::cerr << what << " gave a wrong answer\n", 1;
    std::cout << elapsed << std::endl;
  }
}
