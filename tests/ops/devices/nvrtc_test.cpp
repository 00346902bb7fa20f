// SPDX-License-Identifier: Apache-2.0
// NVIDIA's compiler takes the operations' sources with the configs that are offered to GPUs, for
// every architecture, and they need the local memory that their spaces predict.
#include <gtest/gtest.h>

#include <ejk_kernels/cuda_dialect_cl.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

#include "cuda/real_nvrtc.h"
#include "ops/devices/frame.h"
#include "platform/cuda/compile.h"
#include "platform/cuda/library.h"
#include "platform/fake_backend.h"

namespace device_ops {
namespace {

using ejk::detail::KernelFacts;

constexpr std::array architectures = {80, 90, 100, 120};
// Of each operation, here and in `./test devices`.
constexpr uint64_t few_samples = 16, many_samples = 64;

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

// A few words beside the registers let one more group run on a unit, and the compiler may think
// that worth it. Not so where there are no more registers to be had.
bool ran_out_of_registers(const KernelFacts& facts, const ejk::Grid& grid) {
  constexpr int64_t of_thread = 255, of_unit = 64 << 10, step = 8;
  const int64_t items = grid.items.x * grid.items.y * grid.items.z;
  const int64_t most = std::min(of_thread, of_unit / items / step * step);
  return facts.spilled_bytes > 0 && facts.registers > most - step;
}

// Compiles what a config launches, unless another config had the same program.
void compile_as_predicted(const ejk::ops::DeviceCase& c, const ejk::AnyConfig& config,
                          CompilingBackend& backend, bool is_heuristic) {
  constexpr int64_t max_by_choice = 32;
  backend.facts.clear();
  c.kernel.trial(c.call)->run(config);
  if (is_heuristic && c.gradient) backward_trial(c)->run(config);
  if (backend.facts.empty()) return;
  int64_t local = 0;
  for (const KernelFacts& facts : backend.facts) {
    local = std::max(local, facts.local_bytes);
    if (!is_heuristic) continue;
    EXPECT_FALSE(ran_out_of_registers(facts, backend.last_grid)) << facts.registers;
    EXPECT_LE(facts.spilled_bytes, max_by_choice);
  }
  EXPECT_EQ(local, c.local_bytes(config));
}

// Every config for every architecture takes minutes: else they take turns.
enum class Which { in_turn, all };

// The heuristics' configs and the samples. How many samples those are.
uint64_t compile_cases(const ejk::ops::DeviceOp& op, size_t arch_index, Which which) {
  const int arch = architectures[arch_index];
  const uint64_t samples = which == Which::all ? many_samples : few_samples;
  CompilingBackend backend(arch);
  const ejk::Value identity = ejk::Value::object(
      {{"compute_capability", std::to_string(arch / 10) + "." + std::to_string(arch % 10)}});
  const ejk::Device device =
      shaped_like(ejk::detail::DeviceKind::gpu, {.platform = ejk::Platform::cuda,
                                                 .identity = identity,
                                                 .fingerprint = "cuda",
                                                 .backend = &backend});
  uint64_t cases = 0, at = 0, compiled = 0;
  op.cases(device, [&](const ejk::ops::DeviceCase&) { ++cases; });
  op.cases(device, [&](const ejk::ops::DeviceCase& c) {
    const auto compile = [&](const ejk::AnyConfig& config, bool is_heuristic) {
      const bool is_its_turn = at++ % architectures.size() == arch_index;
      if (which == Which::in_turn && !is_its_turn) return;
      if (!is_heuristic) ++compiled;
      SCOPED_TRACE(std::string(op.name) + ' ' + c.name + " for sm_" + std::to_string(arch) +
                   " with " + to_json(config.to_value()));
      compile_as_predicted(c, config, backend, is_heuristic);
    };
    compile(c.kernel.heuristic_cfg(c.call).value(), true);
    const auto offered = c.kernel.candidate_cfgs(c.call);
    for (const uint64_t point : sample_points(*offered, ejk::ceil_div(samples, cases), 1))
      compile(offered->config(point), false);
  });
  return compiled;
}

class WithNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    const auto file = real_nvrtc();
    if (!file) GTEST_SKIP() << "there is no libnvrtc.so.13 of a toolkit or in .venv";
    setenv("EJK_NVRTC_LIBRARY", file->c_str(), 1);
    ASSERT_EQ(ejk::detail::cuda::load_nvrtc(), "");
  }
  void TearDown() override { unsetenv("EJK_NVRTC_LIBRARY"); }
};

class OpsWithNvrtc : public WithNvrtc, public testing::WithParamInterface<ejk::ops::DeviceOp> {};

TEST_P(OpsWithNvrtc, CompileAndNeedTheLocalMemoryThatIsPredicted) {
  uint64_t compiled = 0;
  for (size_t i = 0; i < architectures.size(); ++i)
    compiled += compile_cases(GetParam(), i, Which::in_turn);
  EXPECT_GE(compiled, few_samples);
}

INSTANTIATE_TEST_SUITE_P(Ops, OpsWithNvrtc, testing::ValuesIn(ejk::ops::device_ops),
                         [](const auto& op) { return std::string(op.param.name); });

// Takes minutes: `./test devices` runs it.
using OpAndArchitecture = std::tuple<ejk::ops::DeviceOp, size_t>;
class OpsForArchitectures : public WithNvrtc,
                            public testing::WithParamInterface<OpAndArchitecture> {};

TEST_P(OpsForArchitectures, DISABLED_CompileWithEverySample) {
  const auto& [op, arch_index] = GetParam();
  EXPECT_GE(compile_cases(op, arch_index, Which::all), many_samples);
}

INSTANTIATE_TEST_SUITE_P(Ops, OpsForArchitectures,
                         testing::Combine(testing::ValuesIn(ejk::ops::device_ops),
                                          testing::Range<size_t>(0, architectures.size())),
                         [](const auto& both) {
                           return std::string(std::get<0>(both.param).name) + "_sm_" +
                                  std::to_string(architectures[std::get<1>(both.param)]);
                         });

}  // namespace
}  // namespace device_ops
