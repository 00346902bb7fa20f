// SPDX-License-Identifier: Apache-2.0
// Launches and device clocks, on devices that write down what they are asked for.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/gpu.h>

#include "platform/device_clock.h"
#include "platform/fake_backend.h"
#include "platform/program_cache.h"
#include "store_fixture.h"

namespace {
std::atomic<long> allocations{0};
}
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not inlined: the compiler would see a malloc freed by delete and complain.
[[gnu::noinline]] void* operator new(size_t n) {
  ++allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace ejk {
namespace {

using fakes::FakeDevice;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// As a device view is.
struct Memory {
  const Device* device;
  detail::DeviceMemory memory = nullptr;
  size_t offset = 0;
};

struct Tile {
  int rows = 8;
  struct Inner {
    bool swap = true;
    enum class Way : uint8_t { direct, tiled } way = Way::tiled;
  } inner = {};
};

constexpr Source source{"s.cl", "text of s"};

// A store of its own for each test, so that no program comes from another one.
class Launches : public ::testing::Test {
 protected:
  Launches() { ::setenv("EJKERNEL_PERSISTENT_CACHE_DIR", scratch_.path().c_str(), 1); }
  ejk::testing::Scratch scratch_;
  FakeDevice fake_;
  Memory view_{&fake_.device};
};

TEST(ConfigMacros, AreFieldsInUpperCaseAsNumbers) {
  const Tile tile;
  EXPECT_EQ(detail::macros_of<Tile>(&tile),
            "#define ROWS 8\n#define INNER_SWAP 1\n#define INNER_WAY 1\n");
}

TEST(ConfigMacros, KeepTheirValueInExpressions) {
  struct Numbers {
    int negative = -3;
    int64_t least = std::numeric_limits<int64_t>::min();
    uint64_t most = std::numeric_limits<uint64_t>::max();
    float third = 1.f / 3;
    double half = 0.5;
    float endless = -std::numeric_limits<float>::infinity();
  } const numbers;
  EXPECT_EQ(detail::macros_of<Numbers>(&numbers),
            "#define NEGATIVE (-3)\n"
            "#define LEAST (-9223372036854775807 - 1)\n"
            "#define MOST 18446744073709551615ul\n"
            "#define THIRD (0x1.555556p-2f)\n"
            "#define HALF (0x1p-1)\n"
            "#define ENDLESS (-INFINITY)\n");
}

TEST(ConfigMacros, AConfigWithoutFieldsHasNoMacros) {
  struct Nothing {
  } const nothing;
  EXPECT_EQ(detail::macros_of<Nothing>(&nothing), "");
  EXPECT_EQ(detail::word_count<Nothing>(), 0u);
}

TEST_F(Launches, BuildTheDialectTheMacrosAndTheTextInThisOrder) {
  launch(source, "k", Tile{}, {}, view_);
  EXPECT_THAT(
      fake_.backend.built,
      ElementsAre("// dialect\n#define ROWS 8\n#define INNER_SWAP 1\n#define INNER_WAY 1\n\n"
                  "#line 1 \"s.cl\"\ntext of s\n"));
  static constexpr Source with_shared{"s.cl", "for all", "for some", "text of s"};
  launch(with_shared, "k", Tile{}, {}, view_);
  EXPECT_THAT(fake_.backend.built.back(),
              HasSubstr("WAY 1\nfor all\nfor some\n#line 1 \"s.cl\"\ntext of s\n"));
}

TEST_F(Launches, HandOverGridAndArgumentsInTheirOrder) {
  Memory part = view_;
  part.offset = 64;
  launch(source, "k", Tile{}, {.groups = {3}, .items = {4, 2}}, 7, view_, 2.5f, part);
  const Grid& grid = fake_.backend.last_grid;
  EXPECT_EQ(std::tuple(grid.groups.x, grid.groups.y, grid.groups.z), std::tuple(3, 1, 1));
  EXPECT_EQ(std::tuple(grid.items.x, grid.items.y, grid.items.z), std::tuple(4, 2, 1));
  const int seven = 7;
  const float number = 2.5f;
  EXPECT_THAT(fake_.backend.last_numbers,
              ElementsAre(std::string(reinterpret_cast<const char*>(&seven), sizeof seven), "",
                          std::string(reinterpret_cast<const char*>(&number), sizeof number), ""));
  EXPECT_EQ(fake_.backend.last_arguments[3].offset, 64u);
}

TEST_F(Launches, BuildOncePerConfig) {
  for (int i = 0; i < 3; ++i)
    for (int rows : {1, 2}) launch(source, "k", Tile{rows}, {}, view_);
  EXPECT_THAT(fake_.backend.built, SizeIs(2));
  EXPECT_THAT(fake_.backend.launches, SizeIs(6));
}

TEST_F(Launches, TellConfigsOfEqualNumbersApartByTheirType) {
  struct Rows {
    int rows = 8;
  };
  struct Columns {
    int columns = 8;
  };
  launch(source, "k", Rows{}, {}, view_);
  launch(source, "k", Columns{}, {}, view_);
  EXPECT_THAT(fake_.backend.built, SizeIs(2));
}

TEST_F(Launches, ThatAreWarmAllocateNothing) {
  struct Silent : fakes::FakeBackend {
    void launch(detail::DeviceKernel&, const Grid&,
                std::span<const detail::LaunchArgument>) override {
      ++count;
    }
    int count = 0;
  } backend;
  const Device device{.platform = Platform::opencl, .backend = &backend};
  const Memory view{&device};
  const auto warm = [&] { launch(source, "k", Tile{}, {.groups = {7}}, 1, 2.f, view, view); };
  warm();
  const long before = allocations;
  for (int i = 0; i < 100; ++i) warm();
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(backend.count, 101);
}

TEST_F(Launches, SeveralKernelsOfASourceShareTheProgram) {
  launch(source, "a", Tile{}, {}, view_);
  launch(source, "b", Tile{}, {}, view_);
  EXPECT_THAT(fake_.backend.built, SizeIs(1));
  EXPECT_THAT(fake_.backend.launches, ElementsAre("a", "b"));
}

TEST_F(Launches, MoreConfigsThanATableHoldsStillRunTheirOwnProgram) {
  for (int rows = 0; rows < 600; ++rows) launch(source, "k", Tile{rows}, {}, view_);
  EXPECT_THAT(fake_.backend.built, SizeIs(600));
  EXPECT_THAT(fake_.backend.built.back(), HasSubstr("#define ROWS 599\n"));
  launch(source, "k", Tile{0}, {}, view_);  // its binary is on disk
  EXPECT_THAT(fake_.backend.built, SizeIs(600));
  EXPECT_THAT(fake_.backend.loaded.back(), HasSubstr("#define ROWS 0\n"));
}

TEST_F(Launches, ALaterDeviceAtTheSameAddressHasItsOwn) {
  launch(source, "k", Tile{}, {}, view_);
  FakeDevice other;
  other.backend.said_target = "another";
  launch(source, "k", Tile{}, {}, Memory{&other.device});
  EXPECT_THAT(other.backend.built, SizeIs(1));
}

TEST_F(Launches, EachThreadHasItsOwnKernelOfTheSameProgram) {
  launch(source, "k", Tile{}, {}, view_);
  std::thread([&] { launch(source, "k", Tile{}, {}, view_); }).join();
  EXPECT_THAT(fake_.backend.built, SizeIs(1));
  EXPECT_THAT(fake_.backend.launches, SizeIs(2));
}

TEST_F(Launches, WithoutGroupsDoNothing) {
  launch(source, "k", Tile{}, {.groups = {0}}, view_);
  EXPECT_THAT(fake_.backend.launches, IsEmpty());
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Launches, RefuseGridsThatCannotBe) {
  EXPECT_THAT(error_of([&] { launch(source, "k", Tile{}, {.groups = {-1}}, view_); }),
              HasSubstr("[k] got -1 x 1 x 1 groups of 1 x 1 x 1 items"));
  EXPECT_THAT(error_of([&] {
                launch(source, "k", Tile{}, {.items = {1, 0}}, view_);
              }),
              HasSubstr("items from 1"));
}

TEST_F(Launches, RefuseArraysOfSeveralDevices) {
  FakeDevice other;
  other.device.index = 1;
  EXPECT_EQ(
      error_of([&] { launch(source, "k", Tile{}, {}, view_, Memory{&other.device}); }),
      "[k] got arrays of opencl 0 and of opencl 1; expected all on one device; copy them with "
      "Tensor::to");
}

TEST_F(Launches, RefuseArraysInTheHostsMemory) {
  EXPECT_THAT(error_of([&] { launch(source, "k", Tile{}, {}, Memory{&cpu_device()}); }),
              HasSubstr("[k] got an array in the host's memory"));
}

// ---- queues

TEST_F(Launches, AreWaitedForByTheirQueue) {
  const Queue queue(fake_.device);
  queue.wait();
  EXPECT_EQ(fake_.backend.waits, 1);
  EXPECT_EQ(queue.cl(), &fake_.backend);
  EXPECT_THAT(error_of([&] { queue.cuda(); }), HasSubstr("got a device of opencl; expected"));
  EXPECT_THAT(error_of([] { Queue on_the_host(cpu_device()); }), HasSubstr("[queue] got cpu 0"));
}

// ---- clocks

// Says that everything takes as long as the test likes.
struct SlowStopwatch : Stopwatch {
  double now() override { return 0; }
  Elapsed time(const std::function<void()>& work, Clock) override {
    work();
    return {.wall = 2};
  }
  bool beside_other_threads() override { return false; }
};

TEST(DeviceClock, IsBelievedWhileItSaysLessThanPassed) {
  FakeDevice fake;
  SlowStopwatch stopwatch;
  fake.backend.said_seconds = 1.5;
  const auto time = detail::device_time(fake.backend, stopwatch, [] {});
  EXPECT_EQ(std::tuple(time.device, fake.backend.clock_lies.load()), std::tuple(1.5, false));
}

TEST(DeviceClock, ThatLiedOnceIsNeverBelievedAgain) {
  for (const double lie : {0., -1., 6e9, 2.1, std::nan("")}) {
    FakeDevice fake;
    SlowStopwatch stopwatch;
    fake.backend.said_seconds = lie;
    const auto first = detail::device_time(fake.backend, stopwatch, [] {});
    EXPECT_EQ(std::tuple(first.device, fake.backend.clock_lies.load()), std::tuple(2., true))
        << lie;
    fake.backend.said_seconds = 1;
    int runs = 0;
    const auto second = detail::device_time(fake.backend, stopwatch, [&] { ++runs; });
    EXPECT_EQ(std::tuple(second.device, runs), std::tuple(2., 1)) << lie;
  }
}

}  // namespace
}  // namespace ejk
