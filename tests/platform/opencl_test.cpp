// SPDX-License-Identifier: Apache-2.0
// OpenCL devices with whatever driver is here; without one these tests are skipped.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/gpu.h>
#include <ejk/stopwatch.h>

#include "platform/backend.h"
#include "platform/device_clock.h"
#include "platform/opencl/open.h"
#include "platform/program_cache.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using detail::Backend;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// As a device view is; owns its memory.
template <class T>
struct Array {
  Array(const Device& on, const std::vector<T>& values)
      : device(&on), memory(on.backend->allocate(values.size() * sizeof(T))), count(values.size()) {
    on.backend->write(memory, 0, values.data(), count * sizeof(T));
  }
  ~Array() { device->backend->release(memory); }
  Array(const Array&) = delete;

  std::vector<T> host() const {
    std::vector<T> out(count);
    device->backend->read(out.data(), memory, 0, count * sizeof(T));
    return out;
  }

  const Device* device;
  detail::DeviceMemory memory;
  size_t offset = 0, count;
};

struct Shape {
  int group = 8, items = 4;
};

constexpr Source saxpy{"saxpy.cl", R"(
__kernel EJK_GROUP(GROUP, 1, 1)
void saxpy(int n, float alpha, __global const float* restrict x, __global float* restrict y) {
  const int first = get_group_id(0) * GROUP * ITEMS + get_local_id(0);
  for (int i = 0; i < ITEMS; ++i)
    if (first + i * GROUP < n) y[first + i * GROUP] += alpha * x[first + i * GROUP];
}
__kernel EJK_GROUP(1, 1, 1)
void twice(__global float* y) { y[get_group_id(0)] *= 2; }
)"};

void run_saxpy(const Shape& c, float alpha, const Array<float>& x, const Array<float>& y) {
  launch(
      saxpy, "saxpy", c,
      {.groups = {ceil_div(static_cast<int64_t>(y.count), c.group * c.items)}, .items = {c.group}},
      static_cast<int>(y.count), alpha, x, y);
}

std::vector<float> counted(size_t n) {
  std::vector<float> out(n);
  std::iota(out.begin(), out.end(), 0.f);
  return out;
}

class OpenCl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (devices("opencl").empty()) GTEST_SKIP() << why_no_devices(Platform::opencl);
    ::setenv("EJKERNEL_PERSISTENT_CACHE_DIR", scratch_.path().c_str(), 1);
  }
  const Device& device() const { return devices("opencl").at(0); }
  Backend& backend() const { return *device().backend; }
  bool is_pocl() const {
    return device().identity.find("platform")->as_string() == "Portable Computing Language";
  }

  // Runs one of the disabled tests below in a process of its own.
  static std::string run_alone(const std::string& test, const std::string& environment) {
    char self[4096];
    const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
    const std::string command = "env " + environment + " " +
                                std::string(self, static_cast<size_t>(n)) +
                                " --gtest_also_run_disabled_tests --gtest_filter=" + test + " 2>&1";
    std::string said;
    FILE* const pipe = ::popen(command.c_str(), "r");
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) said += static_cast<char>(c);
    const int status = ::pclose(pipe);
    return status == 0 ? "passed" : said;
  }

  ejk::testing::Scratch scratch_;
};

// Fills and reads the error that a call throws.
template <class Call>
std::pair<DeviceError::Kind, std::string> error_of(Call call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return {error.device_kind(), error.what()};
  }
  return {DeviceError::Kind::other, "no error"};
}

// ---- devices

TEST_F(OpenCl, DevicesSayWhatTheyAre) {
  for (const Device& found : devices("opencl")) {
    EXPECT_THAT(found.fingerprint, StartsWith("opencl|"));
    for (const char* name : {"kind", "platform", "version", "vendor", "model"})
      EXPECT_NE(found.identity.find(name)->as_string(), "") << name;
    EXPECT_EQ(found.identity.find("compute_units")->as_int(), found.limits.compute_units);
    EXPECT_GT(found.limits.compute_units, 0);
    EXPECT_GT(found.limits.group_items, 0);
    EXPECT_GT(found.limits.local_bytes, 0);
    EXPECT_NE(found.environment.find("driver")->as_string(), "");
    EXPECT_NE(found.environment.find("compiler")->as_string(), "");
    const bool is_cpu = found.identity.find("kind")->as_string() == "cpu";
    EXPECT_EQ(device_kind(found), is_cpu ? "cpu" : "gpu");
    EXPECT_EQ(get_device_platform(found), "opencl");
  }
}

TEST_F(OpenCl, DevicesAreListedBehindTheCpu) {
  const auto all = devices();
  EXPECT_EQ(all.front(), &cpu_device());
  EXPECT_EQ(all.at(1), &device());
  const auto [kind, what] = error_of([] { devices("opencl").at(99); });
  EXPECT_EQ(kind, DeviceError::Kind::absent);
  EXPECT_THAT(what, StartsWith("[devices] got opencl 99; expected less than"));
}

TEST(OpenClPlatform, WithoutALoaderSaysSo) {
  const auto opened = detail::opencl::open("libejk_no_such_loader.so.1");
  EXPECT_TRUE(opened.devices.empty());
  EXPECT_EQ(opened.why_none, "libejk_no_such_loader.so.1 is not installed");
}

TEST(OpenClPlatform, ThatIsNoLoaderSaysSo) {
  const auto opened = detail::opencl::open("libc.so.6");
  EXPECT_TRUE(opened.devices.empty());
  EXPECT_EQ(opened.why_none, "libc.so.6 has no clGetPlatformIDs");
}

TEST(OpenClPlatform, AnUnknownNameIsRefused) {
  EXPECT_THROW(devices("opengl"), Error);
  EXPECT_EQ(&devices("cpu").at(0), &cpu_device());
}

TEST_F(OpenCl, WithoutADriverSaysSo) {
  EXPECT_EQ(run_alone("Alone.DISABLED_NoDriver", "OCL_ICD_VENDORS=/nowhere"), "passed");
}
TEST(Alone, DISABLED_NoDriver) {
  EXPECT_TRUE(devices("opencl").empty());
  EXPECT_EQ(why_no_devices(Platform::opencl), "libOpenCL.so.1 finds no driver");
  const auto [kind, what] = error_of([] { devices("opencl").at(0); });
  EXPECT_EQ(kind, DeviceError::Kind::absent);
  EXPECT_EQ(what, "[devices] got opencl 0; there is none: libOpenCL.so.1 finds no driver");
}

// ---- memory

TEST_F(OpenCl, MemoryIsWrittenCopiedFilledAndRead) {
  const std::vector<uint8_t> bytes{0, 1, 2, 3, 4, 5, 6, 7};
  const Array<uint8_t> a(device(), bytes), b(device(), std::vector<uint8_t>(8, 9));
  EXPECT_EQ(a.host(), bytes);
  backend().copy(b.memory, 5, a.memory, 1, 2);
  backend().fill(b.memory, 0, 3, 0xCB);
  EXPECT_EQ(b.host(), (std::vector<uint8_t>{0xCB, 0xCB, 0xCB, 9, 9, 1, 2, 9}));
  backend().write(b.memory, 7, bytes.data() + 4, 1);
  uint8_t last = 0;
  backend().read(&last, b.memory, 7, 1);
  EXPECT_EQ(last, 4);
}

TEST_F(OpenCl, MemoryOfNoBytesIsAllowed) {
  const Array<float> nothing(device(), {});
  EXPECT_TRUE(nothing.host().empty());
  backend().fill(nothing.memory, 0, 0, 1);
  backend().copy(nothing.memory, 0, nothing.memory, 0, 0);
}

TEST_F(OpenCl, MemoryThatCannotBeIsRefusedByKind) {
  const auto [kind, what] = error_of([&] { backend().allocate(size_t{1} << 60); });
  EXPECT_EQ(kind, DeviceError::Kind::out_of_memory);
  EXPECT_THAT(what, HasSubstr("allocate 1152921504606846976 bytes"));
}

// ---- launches

TEST_F(OpenCl, LaunchesComputeWithTheirConfig) {
  const size_t n = 1001;
  for (const Shape& shape : {Shape{1, 64}, Shape{8, 4}, Shape{32, 1}}) {
    const Array<float> x(device(), counted(n)), y(device(), std::vector<float>(n, 1.f));
    run_saxpy(shape, 2.f, x, y);
    const auto out = y.host();
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], 1.f + 2.f * static_cast<float>(i)) << i;
  }
}

TEST_F(OpenCl, LaunchesRunInTheirOrder) {
  const Array<float> y(device(), {1.f});
  for (int i = 0; i < 10; ++i) {
    launch(saxpy, "twice", Shape{}, {}, y);
    run_saxpy({}, 1.f, y, y);  // y + y
  }
  EXPECT_EQ(y.host(), std::vector<float>{1048576.f});  // 4^10
}

TEST_F(OpenCl, LaunchesTakeMemoryFromAByteOn) {
  Array<float> y(device(), std::vector<float>(1024, 1.f));
  y.offset = 2048;
  launch(saxpy, "twice", Shape{}, {}, y);
  EXPECT_EQ(y.host()[511], 1.f);
  EXPECT_EQ(y.host()[512], 2.f);
  y.offset = 4;  // no driver takes any float
  const auto [kind, what] = error_of([&] { launch(saxpy, "twice", Shape{}, {}, y); });
  EXPECT_EQ(kind, DeviceError::Kind::invalid_launch);
  EXPECT_THAT(what, StartsWith("[twice] got an array that begins at byte 4 of its memory"));
}

TEST_F(OpenCl, AFailedBuildSaysTheFirstErrorAndTheWholeLog) {
  static constexpr Source broken{"broken.cl",
                                 "// line 1\n__kernel void k(__global int* x) {\n"
                                 "  *x = undeclared_name;\n}\n"};
  const Array<int> x(device(), {0});
  try {
    launch(broken, "k", Shape{}, {}, x);
    FAIL() << "it was built";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.device_kind(), DeviceError::Kind::build);
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_THAT(error.what(), StartsWith("[broken.cl] the OpenCL compiler says: "));
    EXPECT_THAT(error.what(), HasSubstr("undeclared_name"));
    EXPECT_THAT(error.log(), HasSubstr("undeclared_name"));
    const std::string line = is_pocl() ? "broken.cl:3:" : "";  // the user's own
    EXPECT_THAT(error.log(), HasSubstr(line));
  }
}

TEST_F(OpenCl, LaunchesThatDoNotFitAreRefusedByKind) {
  using enum DeviceError::Kind;
  const Array<float> y(device(), {1.f});
  const auto [few, few_what] = error_of([&] { launch(saxpy, "saxpy", Shape{}, {}, y); });
  EXPECT_EQ(few, invalid_launch);
  EXPECT_EQ(few_what, "[saxpy] got 1 arguments; expected 4");
  const auto [size, size_what] =
      error_of([&] { launch(saxpy, "saxpy", Shape{}, {.items = {8}}, int64_t{1}, 1.f, y, y); });
  EXPECT_EQ(size, invalid_launch);
  EXPECT_THAT(size_what, StartsWith("[saxpy: argument 0 of 8 bytes]"));
  const auto [name, name_what] = error_of([&] { launch(saxpy, "absent", Shape{}, {}, y); });
  EXPECT_EQ(name, invalid_launch);
  EXPECT_EQ(name_what, "[absent] the source has no __kernel of that name");
  const int many = static_cast<int>(device().limits.group_items) * 2;
  const auto [group, group_what] = error_of([&] { run_saxpy({many, 1}, 1.f, y, y); });
  EXPECT_TRUE(group == invalid_launch || group == build) << group_what;
  EXPECT_EQ(y.host(), std::vector<float>{1.f});
}

TEST_F(OpenCl, ThreadsLaunchBesideEachOther) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, -1);
  for (size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      const Array<float> x(device(), counted(100)), y(device(), std::vector<float>(100, 0.f));
      const auto alpha = static_cast<float>(t + 1);
      for (int i = 0; i < 50; ++i) run_saxpy({}, alpha, x, y);
      const auto out = y.host();
      wrong[t] = 0;
      for (size_t i = 0; i < out.size(); ++i)
        wrong[t] += out[i] != 50 * alpha * static_cast<float>(i);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0));
}

TEST_F(OpenCl, ClocksAreReadOrReplaced) {
  const size_t n = 1 << 16;
  const Array<float> x(device(), counted(n)), y(device(), counted(n));
  run_saxpy({}, 1.f, x, y);
  const auto stopwatch = system_stopwatch();
  const Elapsed time = detail::device_time(backend(), *stopwatch, [&] {
    for (int i = 0; i < 3; ++i) run_saxpy({}, 0.f, x, y);
  });
  EXPECT_GT(time.device, 0);
  if (is_pocl()) {
    EXPECT_FALSE(backend().clock_lies);
  }
  EXPECT_EQ(y.host()[1], 2.f);
}

TEST_F(OpenCl, TheClockCountsWhatTheHostDoesBetweenLaunches) {
  const Array<float> x(device(), counted(64)), y(device(), counted(64));
  run_saxpy({}, 1.f, x, y);
  const auto stopwatch = system_stopwatch();
  double between = 0;
  const Elapsed time = detail::device_time(backend(), *stopwatch, [&] {
    run_saxpy({}, 1.f, x, y);
    backend().wait();
    const double begin = stopwatch->now();
    while (between < 1e-3) between = stopwatch->now() - begin;
    run_saxpy({}, 1.f, x, y);
  });
  EXPECT_GE(time.device, between);
}

TEST_F(OpenCl, QueuesHaveTheirHandle) {
  const Queue queue(device());
  EXPECT_NE(queue.cl(), nullptr);
  EXPECT_EQ(queue.cl(), Queue(device()).cl());
  void* other = nullptr;
  std::thread([&] { other = Queue(device()).cl(); }).join();
  EXPECT_NE(other, queue.cl());
  queue.wait();
}

TEST_F(OpenCl, ForkedProcessesAreRefusedInsteadOfWaitingForEver) {
  const Array<float> y(device(), {1.f});
  const pid_t child = ::fork();
  if (child == 0) {
    const auto [kind, what] = error_of([&] { run_saxpy({}, 1.f, y, y); });
    ::_exit(kind == DeviceError::Kind::lost ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(y.host(), std::vector<float>{1.f});
}

// ---- several devices, processes

TEST_F(OpenCl, SeveralDevicesComputeEachWithItsOwnMemory) {
  if (!is_pocl()) GTEST_SKIP() << "only PoCL can be told to have several devices";
  EXPECT_EQ(run_alone("Alone.DISABLED_TwoDevices", "POCL_DEVICES='pthread pthread'"), "passed");
}
TEST(Alone, DISABLED_TwoDevices) {
  ASSERT_EQ(devices("opencl").size(), 2u);
  const Device &one = devices("opencl").at(0), &two = devices("opencl").at(1);
  EXPECT_EQ(one.fingerprint, two.fingerprint);
  EXPECT_EQ(two.index, 1);
  const Array<float> a(one, {1.f, 2.f}), b(two, {3.f, 4.f});
  launch(saxpy, "twice", Shape{}, {.groups = {2}}, a);
  launch(saxpy, "twice", Shape{}, {.groups = {2}}, b);
  EXPECT_EQ(a.host(), (std::vector<float>{2.f, 4.f}));
  EXPECT_EQ(b.host(), (std::vector<float>{6.f, 8.f}));
  EXPECT_THROW(run_saxpy({}, 1.f, a, b), Error);
}

// Each process has a cache of the driver's own that is empty.
TEST_F(OpenCl, ASecondProcessBuildsNothing) {
  const std::string store = "EJKERNEL_PERSISTENT_CACHE_DIR=" + (scratch_ / "store");
  EXPECT_EQ(run_alone("Alone.DISABLED_Builds", store + " POCL_CACHE_DIR=" + (scratch_ / "1")),
            "passed");
  // Without tunings nothing else is forked.
  EXPECT_EQ(run_alone("Alone.DISABLED_Loads", store + " EJKERNEL_AUTOTUNE_POLICY=heuristics" +
                                                  " POCL_CACHE_DIR=" + (scratch_ / "2")),
            "passed");
}
void run_both_kernels() {
  const Array<float> x(devices("opencl").at(0), {1.f}), y(devices("opencl").at(0), {2.f});
  run_saxpy({}, 1.f, x, y);
  launch(saxpy, "twice", Shape{}, {}, y);
  EXPECT_EQ(y.host(), std::vector<float>{6.f});
}
TEST(Alone, DISABLED_Builds) {
  run_both_kernels();
  const auto counts = devices("opencl").at(0).backend->programs().counts();
  EXPECT_EQ(std::pair(counts.built, counts.loaded), (std::pair<int64_t, int64_t>(1, 0)));
}
TEST(Alone, DISABLED_Loads) {
  run_both_kernels();
  rusage children{};
  ::getrusage(RUSAGE_CHILDREN, &children);
  EXPECT_EQ(children.ru_maxrss, 0) << "a linker was started";
  const auto counts = devices("opencl").at(0).backend->programs().counts();
  EXPECT_EQ(std::pair(counts.built, counts.loaded), (std::pair<int64_t, int64_t>(0, 1)));
}

}  // namespace
}  // namespace ejk
