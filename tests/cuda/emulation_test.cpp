// SPDX-License-Identifier: Apache-2.0
// The emulated driver runs kernels as CUDA does, and finds what is wrong with them.
#include "cuda/emulated_cuda.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "platform/cuda/compile.h"
#include "platform/cuda/library.h"

namespace ejk::detail::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string& mistakes() {
  static const std::string text = text_of_source("mistakes.cu");
  return text;
}

// "mistakes.cu:17" of the line with that comment.
std::string line_with(const std::string& comment) {
  const std::string& text = mistakes();
  const size_t at = text.find("// " + comment);
  if (at == text.npos) throw std::runtime_error("no comment " + comment);
  return std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n'));
}

class EmulationTest : public testing::Test {
 protected:
  static constexpr unsigned threads = 64;

  void SetUp() override {
    ASSERT_EQ(load_driver(), "");
    ASSERT_EQ(load_nvrtc(), "");
    open();
  }

  void open(int index = 0) {
    ASSERT_EQ(driver().cuInit(0), success);
    ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context, index), success);
    ASSERT_EQ(driver().cuCtxSetCurrent(context), success);
    ASSERT_EQ(driver().cuStreamCreate(&stream, stream_default), success);
  }

  static const Cubin& cubin() {
    static const Cubin made = compile("mistakes.cu", mistakes(), 90);
    return made;
  }

  Function kernel(const char* name) {
    if (module == nullptr) {
      EXPECT_EQ(driver().cuModuleLoadData(&module, cubin().bytes.data()), success);
    }
    Function function = nullptr;
    EXPECT_EQ(driver().cuModuleGetFunction(&function, module, name), success) << name;
    return function;
  }

  template <class... P>
  Status launch(const char* name, unsigned blocks, unsigned block, P... parameters) {
    void* values[] = {&parameters..., nullptr};
    return driver().cuLaunchKernel(kernel(name), blocks, 1, 1, block, 1, 1, 0, stream, values,
                                   nullptr);
  }
  template <class... P>
  Status run(const char* name, unsigned blocks, P... parameters) {
    const Status status = launch(name, blocks, threads, parameters...);
    return status == success ? driver().cuStreamSynchronize(stream) : status;
  }

  // Memory of the device; the emulation's is the host's, so that tests look at it as it is.
  template <class T>
  T* memory(size_t count) {
    DevicePointer made = 0;
    EXPECT_EQ(driver().cuMemAlloc_v2(&made, count * sizeof(T)), success);
    return reinterpret_cast<T*>(made);
  }
  template <class T>
  T* memory(const std::vector<T>& values) {
    T* made = memory<T>(values.size());
    std::ranges::copy(values, made);
    return made;
  }

  EmulatedCuda emulation;
  Context context = nullptr;
  Stream stream = nullptr;
  Module module = nullptr;
};

std::vector<float> counting(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.f);
  return values;
}

// ---- barriers

TEST_F(EmulationTest, ThreadsMeetAtABarrier) {
  float *from = memory(counting(3 * threads)), *to = memory<float>(3 * threads);
  ASSERT_EQ(run("reverses", 3, from, to), success) << emulation.finding();
  for (unsigned block = 0; block < 3; ++block)
    for (unsigned i = 0; i < threads; ++i)
      EXPECT_EQ(to[block * threads + i], from[block * threads + threads - 1 - i]);
}

TEST_F(EmulationTest, AMissingBarrierIsFoundWithItsLine) {
  float *from = memory(counting(threads)), *to = memory<float>(threads);
  EXPECT_EQ(run("reverses_without_barrier", 1, from, to), launch_failed);
  EXPECT_THAT(emulation.finding(), AllOf(HasSubstr("reverses_without_barrier: "),
                                         HasSubstr("mistakes.cu:" + line_with("reads too early")),
                                         HasSubstr("no barrier in between")));
}

TEST_F(EmulationTest, ABarrierThatIsMissingBeforeTheNextRoundIsFound) {
  EXPECT_EQ(run("writes_again_without_barrier", 1, memory<float>(threads)), launch_failed);
  EXPECT_THAT(emulation.finding(), AllOf(HasSubstr("mistakes.cu:" + line_with("others still read")),
                                         HasSubstr("writes over what thread")));
}

TEST_F(EmulationTest, ABarrierThatNotAllReachIsFoundWithItsLine) {
  EXPECT_EQ(run("half_of_the_threads_wait", 1), launch_failed);
  EXPECT_THAT(emulation.finding(),
              HasSubstr("32 of 64 threads wait for ever, at a barrier in line " +
                        line_with("not for all") + ";"));
}

TEST_F(EmulationTest, ThreadsAtTwoBarriersAreFoundWithBothLines) {
  EXPECT_EQ(run("threads_wait_at_two_barriers", 1), launch_failed);
  EXPECT_THAT(emulation.finding(),
              HasSubstr(fmt::format("at a barrier in lines {}, {}", line_with("first of two"),
                                    line_with("second of two"))));
}

TEST_F(EmulationTest, ThreadsRunInShuffledOrder) {
  int *turn = memory(std::vector{0}), *order = memory<int>(threads);
  ASSERT_EQ(run("order_of_threads", 1, turn, order), success) << emulation.finding();
  EXPECT_FALSE(std::is_sorted(order, order + threads));
  std::sort(order, order + threads);
  for (unsigned i = 0; i < threads; ++i) EXPECT_EQ(order[i], static_cast<int>(i));
}

// ---- memory

TEST_F(EmulationTest, AWriteBehindAnArrayIsFoundWithItsLine) {
  float* to = memory<float>(10);
  EXPECT_EQ(launch("writes_behind", 1, 1, to, 10), success);
  EXPECT_EQ(driver().cuStreamSynchronize(stream), success) << "one thread writes the last element";
  EXPECT_EQ(launch("writes_behind", 1, 2, to, 10), success);
  EXPECT_EQ(driver().cuStreamSynchronize(stream), illegal_address);
  EXPECT_THAT(emulation.finding(), AllOf(HasSubstr("mistakes.cu:" + line_with("one too far")),
                                         HasSubstr("writes 4 bytes outside")));
}

TEST_F(EmulationTest, AReadBeforeAnArrayIsFoundWithItsLine) {
  EXPECT_EQ(run("reads_before", 1, memory<float>(10), memory<float>(1)), illegal_address);
  EXPECT_THAT(emulation.finding(), AllOf(HasSubstr("mistakes.cu:" + line_with("one too early")),
                                         HasSubstr("reads 4 bytes outside")));
}

TEST_F(EmulationTest, FreedMemoryCannotBeUsed) {
  float* to = memory<float>(threads);
  ASSERT_EQ(run("sets", 1, to, 1.f), success);
  ASSERT_EQ(driver().cuMemFree_v2(reinterpret_cast<DevicePointer>(to)), success);
  EXPECT_EQ(driver().cuMemFree_v2(reinterpret_cast<DevicePointer>(to)), invalid_value);
  EXPECT_EQ(run("sets", 1, to, 1.f), illegal_address);
}

TEST_F(EmulationTest, AnIndexOutsideOfASharedArrayIsFoundWithItsLine) {
  float* to = memory<float>(threads);
  EXPECT_EQ(run("indexes_outside", 1, to, 0), success) << emulation.finding();
  EXPECT_EQ(run("indexes_outside", 1, to, 1), launch_failed);
  EXPECT_THAT(emulation.finding(), HasSubstr("mistakes.cu:" + line_with("not in the array")));
}

TEST_F(EmulationTest, AMisalignedAccessIsFoundWithItsLine) {
  float *from = memory(counting(16)), *to = memory<float>(1);
  EXPECT_EQ(run("reads_four_at", 1, from, 4, to), success) << emulation.finding();
  EXPECT_EQ(to[0], 7.f);
  EXPECT_EQ(run("reads_four_at", 1, from, 2, to), misaligned_address);
  EXPECT_THAT(emulation.finding(), HasSubstr("mistakes.cu:" + line_with("misaligned")));
}

TEST_F(EmulationTest, AProductThatDoesNotFitIsFoundWithItsLine) {
  int* to = memory<int>(1);
  EXPECT_EQ(run("product_of", 1, 1 << 15, 1 << 15, to), success) << emulation.finding();
  EXPECT_EQ(run("product_of", 1, 1 << 16, 1 << 16, to), launch_failed);
  EXPECT_THAT(emulation.finding(), HasSubstr("mistakes.cu:" + line_with("does not fit")));
}

TEST_F(EmulationTest, MemoryBeginsWithoutNumbers) {
  const float* fresh = memory<float>(1000);
  for (size_t i = 0; i < 1000; ++i) ASSERT_TRUE(std::isnan(fresh[i]));
  float* to = memory(std::vector<float>(2 * threads));
  ASSERT_EQ(run("copies_shared", 2, to), success) << emulation.finding();
  for (size_t i = 0; i < 2 * threads; ++i) ASSERT_TRUE(std::isnan(to[i])) << "of shared memory";
}

TEST_F(EmulationTest, AtomicsAreNoRace) {
  int* sum = memory(std::vector{0});
  ASSERT_EQ(run("adds_atomically", 3, sum), success) << emulation.finding();
  EXPECT_EQ(*sum, 3 * 64 * 63 / 2);
}

TEST_F(EmulationTest, CopiesStayWithinTheirArrays) {
  const auto to = reinterpret_cast<DevicePointer>(memory<float>(4));
  const float from[5] = {};
  EXPECT_EQ(driver().cuMemcpyHtoDAsync_v2(to, from, 16, stream), success);
  EXPECT_EQ(driver().cuMemcpyHtoDAsync_v2(to, from, 20, stream), invalid_value);
  EXPECT_EQ(driver().cuMemsetD8Async(to + 8, 0, 12, stream), invalid_value);
}

TEST_F(EmulationTest, MoreThanThereIsCannotBeAllocated) {
  DevicePointer made = 0;
  EXPECT_EQ(driver().cuMemAlloc_v2(&made, size_t{1} << 40), out_of_memory);
}

// ---- warps

TEST_F(EmulationTest, LanesExchangeNumbers) {
  float* to = memory<float>(threads);
  ASSERT_EQ(run("sums_of_warps", 1, memory(counting(threads)), to), success) << emulation.finding();
  for (unsigned i = 0; i < threads; ++i) EXPECT_EQ(to[i], i < 32 ? 496.f : 1520.f);

  int* lanes = memory<int>(3 * threads);
  ASSERT_EQ(run("shuffles", 1, lanes), success) << emulation.finding();
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(lanes[i], 5);
    EXPECT_EQ(lanes[64 + i], i % 32 + 3 < 32 ? i % 32 + 3 : i % 32);
    EXPECT_EQ(lanes[128 + i], i % 8 == 0 ? i % 32 : i % 32 - 1);
  }
}

TEST_F(EmulationTest, AWarpThatWaitsForItselfHasItsMemoryInOrder) {
  float* to = memory<float>(threads);
  ASSERT_EQ(run("neighbours_of_a_warp", 1, to, 1), success) << emulation.finding();
  for (unsigned i = 0; i < threads; ++i) EXPECT_EQ(to[i], static_cast<float>(i ^ 1));
  EXPECT_EQ(run("neighbours_of_a_warp", 1, to, 0), launch_failed);
  EXPECT_THAT(emulation.finding(), HasSubstr("mistakes.cu:" + line_with("reads its neighbour")));
}

TEST_F(EmulationTest, ALaneThatDoesNotComeIsFoundWithTheLine) {
  EXPECT_EQ(run("a_lane_is_missing", 1, memory<float>(threads)), launch_failed);
  EXPECT_THAT(emulation.finding(),
              HasSubstr("31 of 64 threads wait for ever, for their warp in line " +
                        line_with("not all lanes")));
}

TEST_F(EmulationTest, ATensorCoreMultipliesTheTilesOfAWarp) {
  std::mt19937 random(1);
  std::vector<uint16_t> a(16 * 16), b(8 * 16);
  const auto number = [](uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); };
  for (auto* values : {&a, &b})
    for (uint16_t& bits : *values) {
      const float small = static_cast<float>(random() % 17) - 8.f;  // exact in bfloat16
      bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(small) >> 16);
    }
  float* c = memory<float>(16 * 8);
  ASSERT_EQ(launch("multiplies_tiles", 1, 32, memory(a), memory(b), c), success);
  ASSERT_EQ(driver().cuStreamSynchronize(stream), success) << emulation.finding();
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column) {
      float sum = 0;
      for (size_t k = 0; k < 16; ++k) sum += number(a[16 * row + k]) * number(b[16 * column + k]);
      EXPECT_EQ(c[8 * row + column], sum) << row << ", " << column;
    }
}

// ---- the driver

TEST_F(EmulationTest, WorkIsDoneWhenACallerWaitsForIt) {
  float* to = memory(std::vector<float>(threads));
  ASSERT_EQ(launch("sets", 1, threads, to, 5.f), success);
  EXPECT_EQ(to[0], 0.f);
  ASSERT_EQ(driver().cuStreamSynchronize(stream), success);
  EXPECT_EQ(to[0], 5.f);
}

TEST_F(EmulationTest, EventsHappenInTheOrderOfTheirStream) {
  Event begin = nullptr, end = nullptr;
  ASSERT_EQ(driver().cuEventCreate(&begin, event_default), success);
  ASSERT_EQ(driver().cuEventCreate(&end, event_default), success);
  float* to = memory<float>(threads);
  float milliseconds = -1;
  ASSERT_EQ(driver().cuEventRecord(begin, stream), success);
  ASSERT_EQ(launch("sets", 1, threads, to, 5.f), success);
  ASSERT_EQ(driver().cuEventRecord(end, stream), success);
  EXPECT_NE(driver().cuEventElapsedTime(&milliseconds, begin, end), success) << "not there yet";
  ASSERT_EQ(driver().cuEventSynchronize(end), success);
  EXPECT_EQ(to[0], 5.f);
  ASSERT_EQ(driver().cuEventElapsedTime(&milliseconds, begin, end), success);
  EXPECT_GE(milliseconds, 0.f);
}

TEST_F(EmulationTest, LaunchesHaveTheLimitsOfADevice) {
  EXPECT_EQ(launch("at_most_32_threads", 1, 32), success);
  EXPECT_EQ(launch("at_most_32_threads", 1, 33), launch_out_of_resources);
  EXPECT_EQ(launch("half_of_the_threads_wait", 1, 1025), invalid_value);
  EXPECT_EQ(launch("half_of_the_threads_wait", 0, 32), invalid_value);
}

TEST_F(EmulationTest, KernelsThatThePreprocessorLeavesOutAreNotThere) {
  kernel("at_most_32_threads");
  Function function = nullptr;
  EXPECT_EQ(driver().cuModuleGetFunction(&function, module, "left_out"), not_found);
}

TEST_F(EmulationTest, TheNthCallFailsAsAsked) {
  emulation.fail("cuMemAlloc_v2:2:2");
  DevicePointer made = 0;
  EXPECT_EQ(driver().cuMemAlloc_v2(&made, 4), success);
  EXPECT_EQ(driver().cuMemAlloc_v2(&made, 4), out_of_memory);
  EXPECT_EQ(driver().cuMemAlloc_v2(&made, 4), success);
  EXPECT_EQ(emulation.calls_of("cuMemAlloc_v2"), 3);
}

TEST_F(EmulationTest, ALostContextStaysLost) {
  emulation.fail("cuStreamSynchronize:1:701");
  DevicePointer made = 0;
  EXPECT_EQ(driver().cuStreamSynchronize(stream), launch_out_of_resources);
  EXPECT_EQ(driver().cuMemAlloc_v2(&made, 4), success) << "that one can be tried again";
  emulation.fail("cuStreamSynchronize:1:700");
  EXPECT_EQ(driver().cuStreamSynchronize(stream), illegal_address);
  EXPECT_EQ(driver().cuMemAlloc_v2(&made, 4), illegal_address);
  EXPECT_EQ(driver().cuStreamSynchronize(stream), illegal_address);
}

TEST_F(EmulationTest, DevicesHaveMemoryOfTheirOwn) {
  emulation.set("FAKE_CUDA_DEVICES", "2");
  open(0);
  float* of_first = memory<float>(threads);
  open(1);
  int count = 0;
  ASSERT_EQ(driver().cuDeviceGetCount(&count), success);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(run("sets", 1, memory<float>(threads), 1.f), success);
  EXPECT_EQ(run("sets", 1, of_first, 1.f), illegal_address);
  ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context, 0), success);
  ASSERT_EQ(driver().cuCtxSetCurrent(context), success);
  EXPECT_EQ(driver().cuMemFree_v2(reinterpret_cast<DevicePointer>(of_first)), success)
      << "only the second one is lost";
}

TEST_F(EmulationTest, ModulesAreForAnArchitecture) {
  EXPECT_EQ(driver().cuModuleLoadData(&module, std::string(100, 'x').data()), invalid_image);
  for (const auto& [arch, status] :
       {std::pair("90", success), {"80", no_binary_for_gpu}, {"100", no_binary_for_gpu}}) {
    emulation.set("FAKE_CUDA_ARCH", arch);
    open();
    EXPECT_EQ(driver().cuModuleLoadData(&module, cubin().bytes.data()), status) << arch;
  }
}

}  // namespace
}  // namespace ejk::detail::cuda
