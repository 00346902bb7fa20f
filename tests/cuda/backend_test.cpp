// SPDX-License-Identifier: Apache-2.0
// CUDA as a platform, on the emulated driver.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "cuda/device_program.h"
#include "cuda/emulated_cuda.h"
#include "fakes.h"
#include "platform/cuda/library.h"
#include "platform/program_cache.h"

namespace ejk::detail {
namespace {

using cuda::driver;
using cuda::nvrtc_files;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = DeviceError::Kind;

class CudaBackendTest : public testing::Test {
 protected:
  Backend& open() {
    platform = open_cuda();
    if (platform.devices.empty()) throw std::runtime_error(platform.why_none);
    return *platform.devices[0].backend;
  }
  EmulatedCuda emulation;
  OpenedPlatform platform;
};

// The kind of what it throws; nullopt: nothing.
std::optional<Kind> kind_of(const std::function<void()>& action, std::string* text = nullptr) {
  try {
    action();
  } catch (const DeviceError& error) {
    if (text != nullptr) *text = error.what();
    return error.device_kind();
  }
  return std::nullopt;
}

const char saxpy_macros[] = "#define GROUP 64\n#define ITEMS 2\n";

std::shared_ptr<DeviceProgram> saxpy(Backend& backend) {
  return backend.build("saxpy.cl", program_text(backend, "saxpy.cl", saxpy_macros));
}

// ---- what there is

TEST_F(CudaBackendTest, AbsentLibrariesMeanNoDeviceAndAReason) {
  setenv("EJK_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  EXPECT_THAT(open_cuda().devices, testing::IsEmpty());
  EXPECT_EQ(open_cuda().why_none,
            "/nowhere/libcuda.so.1 cannot be loaded; EJK_CUDA_LIBRARY names another file");
  setenv("EJK_CUDA_LIBRARY", "libm.so.6", 1);
  EXPECT_EQ(open_cuda().why_none, "libm.so.6 has no cuInit");
  setenv("EJK_CUDA_LIBRARY", EJK_TEST_EMULATED_CUDA, 1);
  setenv("EJK_NVRTC_LIBRARY", "/nowhere/libnvrtc.so.13", 1);
  EXPECT_EQ(open_cuda().why_none,
            "/nowhere/libnvrtc.so.13 cannot be loaded; EJK_NVRTC_LIBRARY names another file");
}

TEST(NvrtcFiles, FilesOfAWheelBesideThePackageAreFound) {
  namespace fs = std::filesystem;
  const std::string system[] = {"libnvrtc.so.13", "libnvrtc.so.12",
                                "/usr/local/cuda/lib64/libnvrtc.so"};
  const fakes::TempDir folder;
  const std::string packages = folder.path() + "/site-packages", ours = packages + "/ejk";
  EXPECT_THAT(nvrtc_files(ours), testing::ElementsAreArray(system));
  const std::string file = packages + "/nvidia/cu13/lib/libnvrtc.so.13",
                    older = packages + "/nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
  for (const fs::path path : {file, older}) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "a library";
  }
  EXPECT_THAT(nvrtc_files(ours), ElementsAre(system[0], system[1], file, older, system[2]));
  fs::rename(packages, folder.path() + "/bin");
  EXPECT_THAT(nvrtc_files(folder.path() + "/bin/ejk"), testing::ElementsAreArray(system))
      << "what lies beside programs is not loaded";
}

TEST_F(CudaBackendTest, ADriverWithoutADeviceIsNotListed) {
  emulation.set("FAKE_CUDA_DEVICES", "0");
  EXPECT_EQ(open_cuda().why_none, "the CUDA driver does not start: CUDA_ERROR_NO_DEVICE");
  emulation.set("FAKE_CUDA_DEVICES", "1");
  emulation.set("FAKE_CUDA_FAIL",
                "cuInit:1:34");  // of a library that only stands in for the driver
  EXPECT_EQ(open_cuda().why_none, "the CUDA driver does not start: error 34");
}

TEST_F(CudaBackendTest, DevicesSayWhatTheyAre) {
  emulation.set("FAKE_CUDA_DEVICES", "2");
  const OpenedPlatform two = open_cuda();
  ASSERT_EQ(two.devices.size(), 2u) << two.why_none;
  const Device& device = two.devices[1];
  EXPECT_EQ(device.platform, Platform::cuda);
  EXPECT_EQ(device.index, 1);
  EXPECT_EQ(device_kind(device), "gpu");
  EXPECT_EQ(
      to_json(device.identity),
      R"({"kind": "gpu", "vendor": "NVIDIA", "model": "Emulated GPU", )"
      R"("compute_capability": "9.0", "compute_units": 4, "group_items": 1024, )"
      R"("local_bytes": 49152, "most_local_bytes": 101376, "warp": 32, "l2_bytes": 4194304})");
  EXPECT_EQ(device.environment.find("driver")->as_string(), "13.0");
  EXPECT_EQ(device.environment.find("compiler")->as_string(), "NVRTC 13.0");
  EXPECT_EQ(device.fingerprint, two.devices[0].fingerprint) << "they may use each other's choices";
  EXPECT_EQ(device.limits.group_items, 1024);
  EXPECT_EQ(device.limits.local_bytes, 49152);
  EXPECT_EQ(device.limits.compute_units, 4);
}

TEST_F(CudaBackendTest, EachArchitectureIsAnotherDeviceWithItsOwnBinaries) {
  std::set<std::string> fingerprints, targets;
  for (const char* arch : {"80", "90", "100", "120"}) {
    emulation.set("FAKE_CUDA_ARCH", arch);
    Backend& backend = open();
    fingerprints.insert(platform.devices[0].fingerprint);
    targets.insert(backend.target());
    EXPECT_THAT(backend.target(), HasSubstr("sm_" + std::string(arch)));
  }
  EXPECT_EQ(fingerprints.size(), 4u);
  EXPECT_EQ(targets.size(), 4u);
}

// ---- memory

TEST_F(CudaBackendTest, MemoryIsWrittenCopiedFilledAndRead) {
  Backend& backend = open();
  const Array<uint8_t> first(backend, {1, 2, 3, 4, 5, 6}), second(backend, {0, 0, 0, 0, 0, 0});
  backend.copy(second.memory(), 1, first.memory(), 2, 3);
  backend.fill(second.memory(), 4, 2, 9);
  EXPECT_THAT(second.values(), ElementsAre(0, 3, 4, 5, 9, 9));
  const uint8_t more[] = {7, 8};
  backend.write(second.memory(), 2, more, 2);
  EXPECT_THAT(second.values(), ElementsAre(0, 3, 7, 8, 9, 9));
}

TEST_F(CudaBackendTest, NoBytesAreNoError) {
  Backend& backend = open();
  DeviceMemory nothing = backend.allocate(0);
  backend.write(nothing, 0, nullptr, 0);
  backend.read(nullptr, nothing, 0, 0);
  backend.copy(nothing, 0, nothing, 0, 0);
  backend.fill(nothing, 0, 0, 1);
  backend.release(nothing);
  backend.release(nullptr);
}

// The emulation reads memory of the host as late as CUDA may.
TEST_F(CudaBackendTest, ACopiedArrayMayBeChangedAtOnce) {
  Backend& backend = open();
  Array<int> array(backend, {0});
  int value = 5;
  backend.write(array.memory(), 0, &value, sizeof value);
  value = 6;
  EXPECT_THAT(array.values(), ElementsAre(5));
}

TEST_F(CudaBackendTest, TooMuchMemoryIsAnErrorOfItsKind) {
  Backend& backend = open();
  std::string text;
  EXPECT_EQ(kind_of([&] { backend.allocate(size_t{1} << 40); }, &text), Kind::out_of_memory);
  EXPECT_EQ(text, "[allocate 1099511627776 bytes] the CUDA driver says CUDA_ERROR_OUT_OF_MEMORY");
  const Array<int> still_works(backend, {1});
}

TEST_F(CudaBackendTest, TheContextOfOtherLibrariesStaysCurrent) {
  emulation.set("FAKE_CUDA_DEVICES", "2");
  Backend& backend = open();
  cuda::Context theirs = nullptr, now = nullptr;
  ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&theirs, 1), cuda::success);
  ASSERT_EQ(driver().cuCtxSetCurrent(theirs), cuda::success);
  const Array<int> array(backend, {1, 2});
  EXPECT_THAT(array.values(), ElementsAre(1, 2));
  ASSERT_EQ(driver().cuCtxGetCurrent(&now), cuda::success);
  EXPECT_EQ(now, theirs);
}

// ---- programs

TEST_F(CudaBackendTest, SaxpyRuns) {
  Backend& backend = open();
  constexpr int n = 1000;
  std::vector<float> x(n), y(n), expected(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(i);
    y[i] = 1.f;
    expected[i] = std::fma(0.1f, x[i], y[i]);
  }
  const Array<float> on_device_x(backend, x), on_device_y(backend, y);
  launch(backend, *saxpy(backend), "saxpy", {.groups = {ceil_div(n, 128)}, .items = {64}}, n, 0.1f,
         on_device_x, on_device_y);
  EXPECT_EQ(on_device_y.values(), expected) << emulation.finding();
}

struct Tile {
  int bm, bn, bk, tm, tn;
};

std::string macros_of(const Tile& t) {
  return "#define BM " + std::to_string(t.bm) + "\n#define BN " + std::to_string(t.bn) +
         "\n#define BK " + std::to_string(t.bk) + "\n#define TM " + std::to_string(t.tm) +
         "\n#define TN " + std::to_string(t.tn) + "\n";
}

TEST_F(CudaBackendTest, TiledMatmulRunsForOddShapes) {
  Backend& backend = open();
  constexpr int m = 37, n = 29, k = 23;
  std::vector<float> a(m * k), b(k * n), c(m * n), expected(m * n);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 13) / 7.f;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 11) / 5.f;
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j)
      for (size_t q = 0; q < k; ++q)
        expected[i * n + j] = std::fma(a[i * k + q], b[q * n + j], expected[i * n + j]);
  const Array<float> on_device_a(backend, a), on_device_b(backend, b), on_device_c(backend, c);
  for (const Tile& tile : {Tile{16, 16, 8, 2, 2}, Tile{8, 32, 4, 1, 4}}) {
    const auto program =
        backend.build("tiled_matmul.cl", program_text(backend, "tiled_matmul.cl", macros_of(tile)));
    ASSERT_EQ(program->facts().size(), 1u);
    EXPECT_EQ(program->facts()[0].kernel, "tiled_matmul");
    EXPECT_EQ(program->facts()[0].local_bytes, 4 * tile.bk * (tile.bm + tile.bn));
    backend.fill(on_device_c.memory(), 0, c.size() * sizeof(float), 0xff);
    launch(backend, *program, "tiled_matmul",
           {.groups = {ceil_div(n, tile.bn), ceil_div(m, tile.bm)},
            .items = {tile.bn / tile.tn, tile.bm / tile.tm}},
           m, n, k, on_device_a, on_device_b, on_device_c);
    EXPECT_EQ(on_device_c.values(), expected) << emulation.finding();
  }
}

// What the tests of kernels rely on: each barrier and each bound is needed, and is missed.
TEST_F(CudaBackendTest, TiledMatmulWithoutABarrierOrABoundFails) {
  for (const auto& [needed, instead] : {std::pair{"barrier(CLK_LOCAL_MEM_FENCE);  // filled", ""},
                                        {"barrier(CLK_LOCAL_MEM_FENCE);  // used", ""},
                                        {"row + r < m && q0 + q < k ?", "true ?"},
                                        {"if (r < m && q < n)", ""}}) {
    emulation.reset();
    Backend& backend = open();
    std::string source = program_text(backend, "tiled_matmul.cl", macros_of({16, 16, 8, 2, 2}));
    const size_t at = source.find(needed);
    ASSERT_NE(at, source.npos) << needed;
    source.replace(at, std::string_view(needed).size(), instead);
    const Array<float> a(backend, std::vector<float>(17 * 9)),
        b(backend, std::vector<float>(9 * 17)), c(backend, std::vector<float>(17 * 17));
    launch(backend, *backend.build("tiled_matmul.cl", source), "tiled_matmul",
           {.groups = {2, 2}, .items = {8, 8}}, 17, 17, 9, a, b, c);
    std::string text;
    EXPECT_EQ(kind_of([&] { backend.wait(); }, &text), Kind::lost) << "without " << needed;
    EXPECT_THAT(text, HasSubstr("tiled_matmul.cl:")) << "without " << needed;
  }
}

TEST_F(CudaBackendTest, ASourceThatDoesNotCompileSaysWhy) {
  Backend& backend = open();
  std::string text;
  EXPECT_EQ(kind_of(
                [&] {
                  backend.build("bad.cl", std::string(backend.dialect()) +
                                              "__kernel void bad() { nothing = 1; }");
                },
                &text),
            Kind::build);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("[bad.cl] NVRTC says: "), HasSubstr("nothing")));
  EXPECT_EQ(kind_of(
                [&] {
                  backend.build("tiled_matmul.cl", program_text(backend, "tiled_matmul.cl",
                                                                macros_of({128, 128, 64, 8, 8})));
                },
                &text),
            Kind::build);
  EXPECT_THAT(text, HasSubstr("uses too much shared data (0x10000 bytes, 0xc000 max)"));
}

TEST_F(CudaBackendTest, LaunchesThatDoNotFitAreRefused) {
  Backend& backend = open();
  const auto program = saxpy(backend);
  const Array<float> x(backend, {1.f}), y(backend, {2.f});
  const auto launched = [&](const Grid& grid, auto... arguments) {
    return kind_of([&] { launch(backend, *program, "saxpy", grid, arguments...); });
  };
  const Grid grid = {.groups = {1}, .items = {64}};
  EXPECT_EQ(launched(grid, 1, 1.f, x.memory(), y.memory()), std::nullopt);
  EXPECT_EQ(launched({.items = {128}}, 1, 1.f, x.memory(), y.memory()), Kind::invalid_launch);
  EXPECT_EQ(launched({.items = {2048}}, 1, 1.f, x.memory(), y.memory()), Kind::invalid_launch);
  EXPECT_EQ(launched({.groups = {int64_t{1} << 32}}, 1, 1.f, x.memory(), y.memory()),
            Kind::invalid_launch);
  EXPECT_EQ(launched(grid, 1, 1.f, x.memory()), Kind::invalid_launch) << "one is missing";
  EXPECT_EQ(launched(grid, 1, 1.0, x.memory(), y.memory()), Kind::invalid_launch) << "a double";
  EXPECT_EQ(kind_of([&] { program->kernel("saxpi"); }), Kind::invalid_launch);
  backend.wait();
  EXPECT_THAT(y.values(), ElementsAre(3.f)) << "the device is as well as before";
}

TEST_F(CudaBackendTest, GroupsThatNeedMoreRegistersThanThereAreAreRefused) {
  Backend& backend = open();
  const auto program = backend.load(saxpy(backend)->binary(), {{"saxpy", 128, 0, 0}});
  ASSERT_NE(program, nullptr);
  const Array<float> x(backend, {1, 2}), y(backend, {10, 20});
  const auto launch_items = [&](int64_t items) {
    launch(backend, *program, "saxpy", {.items = {items}}, 2, 2.f, x, y), backend.wait();
  };
  std::string text;
  EXPECT_EQ(kind_of([&] { launch_items(513); }, &text), Kind::invalid_launch);
  EXPECT_EQ(text, "[saxpy] takes 128 registers in each of 513 x 1 x 1 items; a group has 65536");
  EXPECT_EQ(kind_of([&] { launch_items(64); }), std::nullopt);
}

TEST_F(CudaBackendTest, ABinaryMakesTheSameProgram) {
  Backend& backend = open();
  const auto built = saxpy(backend);
  const auto loaded = backend.load(built->binary(), built->facts());
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->binary(), built->binary());
  EXPECT_EQ(loaded->facts().size(), 1u);
  const Array<float> x(backend, {1.f, 2.f}), y(backend, {10.f, 20.f});
  launch(backend, *loaded, "saxpy", {.items = {64}}, 2, 3.f, x, y);
  EXPECT_THAT(y.values(), ElementsAre(13.f, 26.f));
}

TEST_F(CudaBackendTest, ADamagedBinaryIsNoProgram) {
  Backend& backend = open();
  const std::string binary = saxpy(backend)->binary();
  EXPECT_EQ(backend.load("", {}), nullptr);
  EXPECT_EQ(backend.load(std::string(1000, 'x'), {}), nullptr);
  EXPECT_EQ(backend.load(binary.substr(0, binary.size() / 2), {}), nullptr);
  emulation.set("FAKE_CUDA_ARCH", "80");
  EXPECT_EQ(open().load(binary, {}), nullptr) << "of another device";
}

TEST_F(CudaBackendTest, ASecondProcessCompilesNothing) {
  Backend* backend = &open();
  const std::string source = program_text(*backend, "saxpy.cl", saxpy_macros);
  const auto first = backend->programs().get("saxpy.cl", source);
  backend->programs().keep(*first, "saxpy");
  EXPECT_EQ(emulation.calls_of("nvrtcCompileProgram"), 1);
  emulation.reset();
  backend = &open();
  const auto second = backend->programs().get("saxpy.cl", source);
  EXPECT_EQ(emulation.calls_of("nvrtcCompileProgram"), 0);
  EXPECT_EQ(second->program->binary(), first->program->binary());
  EXPECT_EQ(second->program->facts().size(), 1u);
}

// ---- queues

TEST_F(CudaBackendTest, EveryThreadHasAStreamOfItsOwn) {
  Backend& backend = open();
  void *mine = backend.queue(), *theirs = nullptr;
  std::thread([&] {
    theirs = backend.queue();
    EXPECT_EQ(backend.queue(), theirs);
    const Array<int> array(backend, {3});
    EXPECT_THAT(array.values(), ElementsAre(3));
  }).join();
  EXPECT_EQ(backend.queue(), mine);
  EXPECT_NE(mine, theirs);
  EXPECT_EQ(emulation.calls_of("cuStreamDestroy_v2"), 1) << "with its thread";
}

TEST_F(CudaBackendTest, LaunchesDoNotWait) {
  Backend& backend = open();
  const auto program = saxpy(backend);
  const Array<float> x(backend, {1.f}), y(backend, {1.f});
  emulation.fail("");
  launch(backend, *program, "saxpy", {.items = {64}}, 1, 1.f, x, y);
  EXPECT_EQ(emulation.calls_of("cuLaunchKernel"), 1);
  EXPECT_EQ(emulation.calls_of("cuStreamSynchronize"), 0);
}

TEST_F(CudaBackendTest, TimesWhatIsBegunMeanwhile) {
  Backend& backend = open();
  const auto program = saxpy(backend);
  const Array<float> x(backend, {1.f}), y(backend, {1.f});
  const double seconds = backend.seconds_of(
      [&] { launch(backend, *program, "saxpy", {.items = {64}}, 1, 1.f, x, y); });
  EXPECT_GT(seconds, 0);
  EXPECT_THAT(y.values(), ElementsAre(2.f));
}

// ---- errors

TEST_F(CudaBackendTest, AKernelThatLeavesItsArraysLosesTheDevice) {
  Backend& backend = open();
  const auto program = saxpy(backend);
  const Array<float> x(backend, {1.f}), y(backend, {1.f});
  launch(backend, *program, "saxpy", {.items = {64}}, 2, 1.f, x, y);
  std::string text;
  EXPECT_EQ(kind_of([&] { backend.wait(); }, &text), Kind::lost);
  EXPECT_THAT(text, HasSubstr("[wait] the CUDA driver says CUDA_ERROR_ILLEGAL_ADDRESS: "));
  EXPECT_EQ(kind_of([&] { backend.allocate(4); }), Kind::lost) << "from now on";
  EXPECT_EQ(kind_of([&] { saxpy(backend); }), Kind::lost);
}

TEST_F(CudaBackendTest, AForkedProcessIsRefused) {
  Backend& backend = open();
  const Array<int> array(backend, {1});
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = kind_of([&] { backend.allocate(4); }) == Kind::lost;
    backend.release(array.memory());  // and nothing happens
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(array.values(), ElementsAre(1));
}

// All that a program does with a device, once.
void use_everything() {
  const OpenedPlatform platform = open_cuda();
  if (platform.devices.empty()) throw DeviceError(Kind::absent, platform.why_none);
  Backend& backend = *platform.backends[0];
  const auto program = saxpy(backend);
  const auto again = backend.load(program->binary(), program->facts());
  const Array<float> x(backend, {1.f}), y(backend, {1.f});
  backend.copy(x.memory(), 0, y.memory(), 0, 4);
  backend.fill(x.memory(), 0, 4, 0);
  backend.seconds_of([&] { launch(backend, *program, "saxpy", {.items = {64}}, 1, 1.f, x, y); });
  if (y.values() != std::vector{1.f}) throw std::runtime_error("wrong");
}

TEST_F(CudaBackendTest, WhicheverCallFailsItIsAnErrorOfItsKind) {
  const char* const drivers_calls[] = {
#define EJK_NAME(name, parameters) #name,
      EJK_CUDA_DRIVER_CALLS(EJK_NAME) EJK_CUDA_NEWER_DRIVER_CALLS(EJK_NAME)};
  const char* const compilers_calls[] = {EJK_NVRTC_CALLS(EJK_NAME)};
#undef EJK_NAME
  const auto failing = [&](const std::string& how) {
    emulation.set("FAKE_CUDA_FAIL", how);
    std::optional<Kind> kind;
    std::thread([&] { kind = kind_of(use_everything); }).join();  // its stream ends with it
    return kind;
  };
  emulation.set("FAKE_CUDA_FAIL", "cuInit:1:34");
  EXPECT_EQ(kind_of(use_everything), Kind::absent);
  // These are not reported: what they free is freed with the context.
  const std::set<std::string> unheard = {"cuStreamDestroy_v2", "cuEventDestroy_v2", "cuMemFree_v2",
                                         "cuModuleUnload", "nvrtcDestroyProgram"};
  // Without these there is no device.
  const std::set<std::string> first = {
      "cuInit",          "cuDriverGetVersion",   "cuDeviceGetCount",         "cuDeviceGet",
      "cuDeviceGetName", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "nvrtcVersion"};
  for (const std::string call : drivers_calls) {
    if (call.starts_with("cuGetError")) continue;  // asked for messages only, as below
    const auto of_memory = failing(call + ":1:2"), of_context = failing(call + ":1:700");
    SCOPED_TRACE(call);
    if (unheard.contains(call)) {
      EXPECT_EQ(of_memory, std::nullopt);
    } else if (first.contains(call)) {
      EXPECT_EQ(of_memory, Kind::absent);
      EXPECT_EQ(of_context, Kind::absent);
    } else {
      EXPECT_EQ(of_memory, Kind::out_of_memory);
      EXPECT_EQ(of_context, Kind::lost);
    }
    EXPECT_GE(emulation.calls_of(call.c_str()), 1) << "is not used";
  }
  emulation.set("FAKE_CUDA_FAIL", "cuGetErrorName:1:1");
  EXPECT_EQ(cuda::text_of(cuda::no_device), "error 100");
  emulation.set("FAKE_CUDA_FAIL", "cuGetErrorString:1:1");
  EXPECT_EQ(cuda::text_of(cuda::no_device), "CUDA_ERROR_NO_DEVICE");
  for (const std::string call : compilers_calls) {
    const auto kind = failing(call + ":1:1");
    SCOPED_TRACE(call);
    if (unheard.contains(call)) EXPECT_EQ(kind, std::nullopt);
    else EXPECT_EQ(kind, first.contains(call) ? Kind::absent : Kind::out_of_memory);
    EXPECT_GE(emulation.calls_of(call.c_str()), 1) << "is not used";
  }
}

}  // namespace
}  // namespace ejk::detail
