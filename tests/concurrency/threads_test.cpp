// SPDX-License-Identifier: Apache-2.0
// What threads share without knowing: the warm table, and the count of a space.
#include <ejk/executor.h>
#include <ejk/space.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace ejk {
namespace {

struct Counted {
  static constexpr std::string_view op_id = "counted";
  struct Config {
    int number = 0;
  };
  static inline int asked = 0;
  int run(const Config& c, const std::vector<std::string>&) const { return c.number; }
  Config heuristic_cfg(const Invocation&) const { return {++asked}; }
};

TEST(WarmKeys, SeveralThreadsWithLongKeysDoNotDisturbEachOther) {
  SelectorOptions options;
  options.policy = AutotunePolicy{.allow_autotune = false};
  const Executor e(std::move(options));
  const Counted kernel;
  std::vector<std::vector<std::string>> lists;
  for (int i = 0; i < 8; ++i)
    lists.push_back(std::vector<std::string>(60, std::string(1, static_cast<char>('a' + i))));
  std::vector<int> chosen;
  for (const auto& list : lists) chosen.push_back(e(kernel, list));
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 400; ++i)
        wrong += e(kernel, lists[(i + t) % 8]) != chosen[(i + t) % 8];
    });
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

struct Tile {
  int rows = 4;
};

TEST(Space, IsCountedOnceForAllCopiesAndThreads) {
  std::atomic<int> asked = 0;
  const auto s =
      space<Tile>().param(&Tile::rows, {1, 2, 3}).where([&](const Tile&) { return ++asked > 0; });
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([copy = s] { EXPECT_EQ(copy.size(), 3u); });
  }
  EXPECT_EQ(s.size(), 3u);
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace ejk
