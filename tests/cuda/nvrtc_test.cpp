// SPDX-License-Identifier: Apache-2.0
// NVIDIA's compiler takes the dialect for every architecture, and says what kernels need.
#include <gmock/gmock.h>

#include <ejk_kernels/cuda_dialect_cl.h>

#include <string>

#include "cuda/emulated_cuda.h"
#include "cuda/real_nvrtc.h"
#include "platform/cuda/compile.h"
#include "platform/cuda/library.h"

namespace ejk::detail::cuda {
namespace {

using testing::HasSubstr;

class NvrtcTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const auto file = real_nvrtc();
    if (!file) GTEST_SKIP() << "there is no libnvrtc.so.13 of a toolkit or in .venv";
    setenv("EJK_NVRTC_LIBRARY", file->c_str(), 1);
    ASSERT_EQ(load_nvrtc(), "");
  }
  void TearDown() override { unsetenv("EJK_NVRTC_LIBRARY"); }

  static Cubin compiled(const std::string& file, const std::string& macros = "") {
    return compile(file, ejk_kernels::cuda_dialect_cl + macros + text_of_source(file), GetParam());
  }
};

TEST_P(NvrtcTest, CompilesSaxpy) {
  const Cubin cubin = compiled("saxpy.cl", "#define GROUP 64\n#define ITEMS 4\n");
  EXPECT_EQ(cubin.bytes.substr(1, 3), "ELF");
  ASSERT_EQ(cubin.facts.size(), 1u) << cubin.log;
  EXPECT_EQ(cubin.facts[0].kernel, "saxpy");
  EXPECT_GT(cubin.facts[0].registers, 0);
  EXPECT_EQ(cubin.facts[0].spilled_bytes, 0);
  EXPECT_EQ(cubin.facts[0].local_bytes, 0);
}

TEST_P(NvrtcTest, TiledMatmulHasTheLocalMemoryThatItsSpacePredicts) {
  for (const int bk : {8, 16}) {
    const Cubin cubin = compiled(
        "tiled_matmul.cl", "#define BM 64\n#define BN 32\n#define TM 4\n#define TN 4\n#define BK " +
                               std::to_string(bk) + "\n");
    ASSERT_EQ(cubin.facts.size(), 1u) << cubin.log;
    EXPECT_EQ(cubin.facts[0].local_bytes, 4 * bk * (64 + 32)) << cubin.log;
    EXPECT_EQ(cubin.facts[0].spilled_bytes, 0) << cubin.log;
  }
}

TEST_P(NvrtcTest, CompilesVectorsAndTensorCores) {
  for (const char* width : {"2", "16"}) {
    const Cubin cubin = compiled("vectors.cl", std::string("#define WIDTH ") + width + "\n");
    EXPECT_EQ(cubin.facts.size(), 3u) << cubin.log;
  }
  EXPECT_EQ(compiled("tensor_core.cl").facts.size(), 1u);
}

TEST_P(NvrtcTest, RefusesWhatCannotRun) {
  const auto message = [&](const std::string& file, const std::string& macros) -> std::string {
    try {
      compiled(file, macros);
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.device_kind(), DeviceError::Kind::build);
      EXPECT_NE(error.log(), "");
      return error.what();
    }
    return "it compiles";
  };
  EXPECT_THAT(
      message("tiled_matmul.cl",
              "#define BM 128\n#define BN 128\n#define TM 8\n#define TN 8\n#define BK 64\n"),
      HasSubstr("uses too much shared data"));
  EXPECT_THAT(message("saxpy.cl", "#define GROUP 64\n"), HasSubstr("ITEMS"));
}

INSTANTIATE_TEST_SUITE_P(Sm, NvrtcTest, testing::Values(80, 90, 100, 120),
                         [](const auto& arch) { return std::to_string(arch.param); });

TEST(NvrtcLogTest, SaysWhatEachKernelNeeds) {
  const auto facts = facts_of(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'first' for 'sm_90'\n"
      "ptxas info    : Function properties for first\n"
      "ptxas         .     96 bytes stack frame, 112 bytes spill stores, 120 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 16896 "
      "bytes smem\n"
      "ptxas info    : Compile time = 3.346 ms\n"
      "ptxas info    : Compiling entry function 'second' for 'sm_90'\n"
      "ptxas info    : Used 17 registers, used 0 barriers");
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0].kernel, "first");
  EXPECT_EQ(facts[0].registers, 255);
  EXPECT_EQ(facts[0].spilled_bytes, 112);
  EXPECT_EQ(facts[0].local_bytes, 16896);
  EXPECT_EQ(facts[1].kernel, "second");
  EXPECT_EQ(facts[1].registers, 17);
  EXPECT_EQ(facts[1].spilled_bytes + facts[1].local_bytes, 0);
  EXPECT_TRUE(facts_of("").empty());
  EXPECT_TRUE(facts_of("warning: registers").empty());
}

}  // namespace
}  // namespace ejk::detail::cuda
