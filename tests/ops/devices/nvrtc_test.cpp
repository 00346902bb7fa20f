// SPDX-License-Identifier: Apache-2.0
// NVIDIA's compiler takes the operations' sources with the configs that are offered to GPUs, for
// every architecture, and they need the local memory that their spaces predict.
#include <gtest/gtest.h>

#include <ejk_kernels/cuda_dialect_cl.h>

#include <algorithm>
#include <array>
#include <string>

#include "cuda/real_nvrtc.h"
#include "ops/devices/frame.h"
#include "platform/cuda/compile.h"
#include "platform/cuda/library.h"
#include "platform/fake_backend.h"

namespace device_ops {
namespace {

using ejk::detail::KernelFacts;

constexpr std::array architectures = {80, 90, 100, 120};
constexpr uint64_t samples = 6;  // of each case and architecture

// Compiles what is launched, and launches nothing.
class CompilingBackend : public fakes::FakeBackend {
 public:
  explicit CompilingBackend(int arch) : arch_(arch) { refuses_binaries = true; }
  std::string_view dialect() const override { return ejk_kernels::cuda_dialect_cl; }
  std::shared_ptr<ejk::detail::DeviceProgram> build(const std::string& name,
                                                    const std::string& source) override {
    const auto cubin = ejk::detail::cuda::compile(name, source, arch_);
    facts.insert(facts.end(), cubin.facts.begin(), cubin.facts.end());
    return FakeBackend::build(name, source);
  }
  std::vector<KernelFacts> facts;

 private:
  int arch_;
};

class OpsWithNvrtc : public testing::TestWithParam<ejk::ops::DeviceOp> {
 protected:
  void SetUp() override {
    const auto file = real_nvrtc();
    if (!file) GTEST_SKIP() << "there is no libnvrtc.so.13 of a toolkit or in .venv";
    setenv("EJK_NVRTC_LIBRARY", file->c_str(), 1);
    ASSERT_EQ(ejk::detail::cuda::load_nvrtc(), "");
  }
  void TearDown() override { unsetenv("EJK_NVRTC_LIBRARY"); }
};

// What the compiler says of all kernels that a config launches. False: another config had the same
// program, and it was compiled for that.
bool compile_as_predicted(const ejk::ops::DeviceCase& c, const ejk::AnyConfig& config,
                          CompilingBackend& backend, bool is_heuristic, int64_t most_spilled) {
  backend.facts.clear();
  c.kernel.trial(c.call)->run(config);
  if (is_heuristic && c.gradient) backward_trial(c)->run(config);
  if (backend.facts.empty()) return false;
  int64_t local = 0, spilled = 0;
  for (const KernelFacts& facts : backend.facts)
    local = std::max(local, facts.local_bytes), spilled += facts.spilled_bytes;
  EXPECT_EQ(local, c.local_bytes(config));
  if (is_heuristic) {
    EXPECT_LE(spilled, most_spilled);
  }
  return true;
}

// The heuristics for all architectures, and over 64 others, each for one of them.
TEST_P(OpsWithNvrtc, CompileAndNeedTheLocalMemoryThatIsPredicted) {
  // Kernels of attention keep a few words beside the registers, those of other operations none.
  constexpr int64_t attention_spills = 32;
  const bool is_attention = std::string_view(GetParam().name).ends_with("attention");
  uint64_t compiled = 0, seed = 0;
  for (const int arch : architectures) {
    CompilingBackend backend(arch);
    const ejk::Value identity = ejk::Value::object(
        {{"compute_capability", std::to_string(arch / 10) + "." + std::to_string(arch % 10)}});
    const ejk::Device device =
        shaped_like(ejk::detail::DeviceKind::gpu, {.platform = ejk::Platform::cuda,
                                                   .identity = identity,
                                                   .fingerprint = "cuda",
                                                   .backend = &backend});
    GetParam().cases(device, [&](const ejk::ops::DeviceCase& c) {
      const auto offered = c.kernel.candidate_cfgs(c.call);
      std::vector<ejk::AnyConfig> configs = {c.kernel.heuristic_cfg(c.call).value()};
      for (const uint64_t point : sample_points(*offered, samples, ++seed))
        configs.push_back(offered->config(point));
      for (const ejk::AnyConfig& config : configs) {
        SCOPED_TRACE(std::string(GetParam().name) + ' ' + c.name + " for sm_" +
                     std::to_string(arch) + " with " + to_json(config.to_value()));
        compiled += compile_as_predicted(c, config, backend, &config == configs.data(),
                                         is_attention ? attention_spills : 0);
      }
    });
  }
  EXPECT_GE(compiled, 64u);
}

INSTANTIATE_TEST_SUITE_P(Ops, OpsWithNvrtc, testing::ValuesIn(ejk::ops::device_ops),
                         [](const auto& op) { return std::string(op.param.name); });

}  // namespace
}  // namespace device_ops
