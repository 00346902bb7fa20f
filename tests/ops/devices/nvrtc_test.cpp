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
// Of each operation, here and in `./test devices`; of each call's gradient.
constexpr uint64_t few_samples = 16, many_samples = 64, samples_of_gradient = 2;

struct CompiledKernel : fakes::FakeKernel {
  CompiledKernel(const std::string& kernel_name, KernelFacts known)
      : FakeKernel(kernel_name), facts(std::move(known)) {}
  KernelFacts facts;
};

struct CompiledProgram : fakes::FakeProgram {
  CompiledProgram(const std::string& source, std::vector<KernelFacts> of_kernels)
      : FakeProgram(source), all(std::move(of_kernels)) {}
  std::unique_ptr<ejk::detail::DeviceKernel> kernel(const std::string& name) override {
    return std::make_unique<CompiledKernel>(name,
                                            *std::ranges::find(all, name, &KernelFacts::kernel));
  }
  std::vector<KernelFacts> facts() const override { return all; }
  std::vector<KernelFacts> all;
};

// Compiles what is launched, and launches nothing.
class CompilingBackend : public fakes::FakeBackend {
 public:
  explicit CompilingBackend(int arch) : arch_(arch) { refuses_binaries = true; }
  std::string_view dialect() const override { return ejk_kernels::cuda_dialect_cl; }
  std::shared_ptr<ejk::detail::DeviceProgram> build(const std::string& name,
                                                    const std::string& source) override {
    const auto cubin = ejk::detail::cuda::compile(name, source, arch_);
    return std::make_shared<CompiledProgram>(source, cubin.facts);
  }
  void launch(ejk::detail::DeviceKernel& kernel, const ejk::Grid& grid,
              std::span<const ejk::detail::LaunchArgument>) override {
    launched.push_back({dynamic_cast<CompiledKernel&>(kernel).facts, grid});
  }

  struct Launch {
    KernelFacts facts;
    ejk::Grid grid;
  };
  std::vector<Launch> launched;

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

// Compiles what a config launches, as far as no other config had the same program.
void compile_as_predicted(const ejk::ops::DeviceCase& c, Pass pass, const ejk::AnyConfig& config,
                          CompilingBackend& backend, bool is_heuristic) {
  constexpr int64_t max_by_choice = 32;
  backend.launched.clear();
  c.kernel.trial(call_of(c, pass))->run(config);
  int64_t local = 0;
  for (const auto& [facts, grid] : backend.launched) {
    local = std::max(local, facts.local_bytes);
    if (!is_heuristic) continue;
    EXPECT_FALSE(ran_out_of_registers(facts, grid)) << facts.kernel << ' ' << facts.registers;
    EXPECT_LE(facts.spilled_bytes, max_by_choice) << facts.kernel;
  }
  EXPECT_EQ(local, c.local_bytes(config, pass == Pass::gradient));
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
    const auto compile_pass = [&](Pass pass, uint64_t samples_of_pass) {
      const auto compile = [&](const ejk::AnyConfig& config, bool is_heuristic) {
        const bool is_its_turn = at++ % architectures.size() == arch_index;
        if (which == Which::in_turn && !is_its_turn) return;
        compiled += !is_heuristic && pass == Pass::forward;
        SCOPED_TRACE(std::string(op.name) + ' ' + c.name +
                     (pass == Pass::gradient ? ", gradient," : "") + " for sm_" +
                     std::to_string(arch) + " with " + to_json(config.to_value()));
        compile_as_predicted(c, pass, config, backend, is_heuristic);
      };
      const ejk::Invocation call = call_of(c, pass);
      compile(c.kernel.heuristic_cfg(call).value(), true);
      const auto offered = c.kernel.candidate_cfgs(call);
      for (const uint64_t point : sample_points(*offered, samples_of_pass, 1))
        compile(offered->config(point), false);
    };
    compile_pass(Pass::forward, ejk::ceil_div(samples, cases));
    if (c.gradient) compile_pass(Pass::gradient, samples_of_gradient);
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
