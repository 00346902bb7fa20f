// SPDX-License-Identifier: Apache-2.0
// How much the memory tier and a selector remember, and what becomes of the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes.h"

namespace {

using fakes::Show;
using testing::ElementsAre;

ejk::EntryId id(const std::string& key) { return {"device", "op", key, ""}; }

class MemoryTest : public testing::Test {
 protected:
  // Calls Show with so many elements, and gives the block it ran with.
  static float call(const ejk::Executor& executor, size_t size) {
    const std::vector<float> x(size);
    std::vector<float> y(size);
    executor(Show{}, x, y);
    return y[0];
  }
  static void keep(ejk::ConfigCache& cache, const std::string& key) {
    cache.keep(id(key), {ejk::make_config(Show::Config{1}), ejk::Origin::heuristics, ""},
               cache.generation());
  }

  fakes::Setup setup;
  const fakes::TempDir dir;
};

TEST_F(MemoryTest, TheLeastRecentlyUsedEntryGoesFirst) {
  ejk::ConfigCache cache(2);
  keep(cache, "a"), keep(cache, "b");
  EXPECT_TRUE(cache.find(id("a")));
  keep(cache, "c");
  EXPECT_TRUE(cache.find(id("a")));
  EXPECT_FALSE(cache.find(id("b")));
  EXPECT_TRUE(cache.find(id("c")));
  EXPECT_EQ(cache.size(), 2u);
}

TEST_F(MemoryTest, AnEntryThatWasPutStaysAndDisplacesNoOther) {
  ejk::ConfigCache cache(2);
  for (const char* key : {"x", "y", "z"}) cache.put_any(id(key), ejk::make_config(Show::Config{9}));
  for (const char* key : {"a", "b", "c"}) keep(cache, key);
  std::vector<std::string> keys;
  for (const ejk::EntryId& held : cache.keys()) keys.push_back(held.key);
  EXPECT_THAT(keys, ElementsAre("b", "c", "x", "y", "z"));
  cache.erase(id("y"));
  EXPECT_FALSE(cache.find(id("y")));
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
}

TEST_F(MemoryTest, AForgottenShapeIsReadFromTheStoreAgain) {
  auto options = setup.options(dir.path());
  options.most_shapes = 2;
  const ejk::Executor executor(options);
  for (size_t size = 1; size <= 5; ++size) EXPECT_EQ(call(executor, size), 2);
  EXPECT_EQ(executor.chain().cache().size(), 2u);
  setup.events.take();
  EXPECT_EQ(call(executor, 1), 2);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/persistent"));
  EXPECT_EQ(call(executor, 1), 2);
  EXPECT_THAT(setup.events.take(), ElementsAre("cache_hit/memory"));
  EXPECT_EQ(setup.tuner->asked, 5);
}

TEST_F(MemoryTest, WithoutAStoreAForgottenShapeIsTunedAgain) {
  auto options = setup.options();
  options.most_shapes = 2;
  const ejk::Executor executor(options);
  for (size_t size = 1; size <= 5; ++size) EXPECT_EQ(call(executor, size), 2);
  EXPECT_EQ(call(executor, 5), 2);
  EXPECT_EQ(setup.tuner->asked, 5);
  EXPECT_EQ(call(executor, 1), 2);
  EXPECT_EQ(setup.tuner->asked, 6);
}

TEST_F(MemoryTest, ASingleShapeIsEnough) {
  auto options = setup.options();
  options.on_event = nullptr;
  options.most_shapes = 0;  // is taken for one
  const ejk::Executor executor(options);
  for (int round = 0; round < 3; ++round)
    for (size_t size = 1; size <= 3; ++size)
      for (int repeat = 0; repeat < 2; ++repeat) EXPECT_EQ(call(executor, size), 2);
  EXPECT_EQ(executor.chain().warm().entries(), 1u);
  EXPECT_EQ(setup.tuner->asked, 9);
}

}  // namespace
