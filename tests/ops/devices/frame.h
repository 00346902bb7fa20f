// SPDX-License-Identifier: Apache-2.0
// Checks the operations that run on devices with many configs, for the tests here.
//
// An operation comes into all of them by its calls in src/ops/device_cases.h. For each check there
// is a control: a mistake in the source that it must find. What an operation shares with others is
// spoilt for all; one with bounds and barriers of its own adds them to `controls`.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/candidates.h>
#include <ejk/config.h>
#include <ejk/names.h>

#include "ops/device_cases.h"
#include "platform/backend.h"
#include "platform/device_kind.h"
#include "tune/reference_check.h"

namespace device_ops {

// A mistake: in the programs of `ops` (empty: of all) one text stands for another.
struct Control {
  std::string_view name, ops, from, to;
  bool on_cuda = true;  // false: its configs are offered to CPUs behind OpenCL only

  bool is_for(std::string_view op) const {
    const auto padded = [](std::string_view text) { return " " + std::string(text) + " "; };
    return ops.empty() || padded(ops).find(padded(op)) != std::string::npos;
  }
};
inline constexpr Control controls[] = {
    {"barrier", "", "barrier(CLK_LOCAL_MEM_FENCE);", ";"},
    {"bound", "rms_norm layer_norm softmax", "min(WIDTH, columns - c)", "WIDTH"},
    {"bound", "matmul grouped_matmul", "row < rows && column < columns", "row < rows"},
    {"strip", "matmul grouped_matmul", "v < min(columns - j, STRIP)", "v < STRIP", false},
    {"bound", "flash_attention", "query + right + 1)", "query + right + 2)"},
    {"bound", "decode_attention", "j >= count ? -INFINITY", "j > count ? -INFINITY"},
};

// A device as another kind would be, for the configs that are offered there: CPUs behind OpenCL are
// offered one item per group, GPUs groups with local memory.
inline ejk::Device shaped_like(ejk::detail::DeviceKind kind, ejk::Device device) {
  device.identity["kind"] = ejk::name_of(kind);
  device.limits = kind == ejk::detail::DeviceKind::gpu ? ejk::DeviceLimits{1024, 48 << 10, 1, 80}
                                                       : ejk::DeviceLimits{4096, 1 << 20, 16, 2};
  return device;
}

// A case's call, forward alone or with the gradient behind it.
enum class Pass { forward, gradient };
inline ejk::Invocation call_of(const ejk::ops::DeviceCase& c, Pass pass) {
  ejk::Invocation call = c.call;
  call.backward = pass == Pass::gradient;
  return call;
}

// For both kinds the heuristic's and `samples` others, each once, as far as they can run on the
// device.
inline std::vector<ejk::AnyConfig> sampled_configs(const ejk::ops::DeviceCase& c, uint64_t samples,
                                                   uint64_t seed = 1, Pass pass = Pass::forward) {
  std::vector<ejk::AnyConfig> configs;
  std::set<std::string> seen;
  const ejk::Invocation here = call_of(c, pass);
  const auto add = [&](const ejk::AnyConfig& config) {
    if (c.kernel.is_valid(config, here) && seen.insert(to_json(config.to_value())).second)
      configs.push_back(config);
  };
  for (const auto kind : {ejk::detail::DeviceKind::cpu, ejk::detail::DeviceKind::gpu}) {
    const ejk::Device device = shaped_like(kind, *c.call.device);
    ejk::Invocation call = here;
    call.device = &device;
    add(c.kernel.heuristic_cfg(call).value());
    const auto offered = c.kernel.candidate_cfgs(call);
    for (const uint64_t point : sample_points(*offered, samples, seed)) add(offered->config(point));
  }
  return configs;
}

// How far results may be off: a rounding of the type, or some of sums in float.
inline std::optional<ejk::Tolerance> tolerance(ejk::DType dtype) {
  return ejk::Tolerance{dtype == ejk::DType::bfloat16 ? 8e-3 : 5e-6, 1e-30};
}

struct Findings {
  int runs = 0;
  std::vector<std::string> problems;
};

// Compiling takes most of the time, a second each for some: $EJK_TEST_SAMPLES for more.
inline uint64_t usual_samples() {
  const char* given = std::getenv("EJK_TEST_SAMPLES");
  return given == nullptr ? 2 : std::strtoull(given, nullptr, 10);
}
// A gradient has several programs.
inline uint64_t usual_samples_of_gradients() { return std::min<uint64_t>(usual_samples(), 1); }

// Runs all cases and their gradients with sampled configs.
enum class Until { end, first_problem };
inline Findings check(const ejk::ops::DeviceOp& op, const ejk::Device& device,
                      Until until = Until::end) {
  Findings findings;
  uint64_t seed = 0;  // other samples for each case
  op.cases(device, [&](const ejk::ops::DeviceCase& c) {
    const auto run_all = [&](ejk::detail::ReferenceCheck check, const std::string& what,
                             const std::vector<ejk::AnyConfig>& configs) {
      for (const ejk::AnyConfig& config : configs) {
        if (until == Until::first_problem && !findings.problems.empty()) return;
        ++findings.runs;
        if (const auto problem = check.problem_with(config))
          findings.problems.push_back(std::string(op.name) + ' ' + what + ' ' + c.name + " with " +
                                      to_json(config.to_value()) + ": " + *problem);
      }
    };
    const auto trial = c.kernel.trial(c.call);
    run_all(ejk::detail::ReferenceCheck(*trial, tolerance), "of",
            sampled_configs(c, usual_samples(), ++seed));
    if (!c.gradient) return;
    const auto backward = c.kernel.trial(call_of(c, Pass::gradient));
    run_all(ejk::detail::ReferenceCheck(*backward, c.gradient(), tolerance), "gradient of",
            sampled_configs(c, usual_samples_of_gradients(), seed, Pass::gradient));
  });
  return findings;
}

// Another device's backend that spoils the sources.
class SpoilingBackend : public ejk::detail::Backend {
 public:
  SpoilingBackend(ejk::detail::Backend& real, const Control& control)
      : real_(real), control_(control) {}
  // How many places it has found in all programs.
  int changed = 0;

  std::shared_ptr<ejk::detail::DeviceProgram> build(const std::string& name,
                                                    const std::string& source) override {
    std::string text = source;
    for (size_t at = 0; (at = text.find(control_.from, at)) != text.npos; ++changed)
      text.replace(at, control_.from.size(), control_.to), at += control_.to.size();
    return real_.build(name, text);
  }
  std::string target() const override {
    return real_.target() + " spoilt: " + std::string(control_.name);
  }

  ejk::detail::DeviceMemory allocate(size_t bytes) override { return real_.allocate(bytes); }
  void release(ejk::detail::DeviceMemory m) noexcept override { real_.release(m); }
  void write(ejk::detail::DeviceMemory to, size_t at, const void* from, size_t bytes) override {
    real_.write(to, at, from, bytes);
  }
  void read(void* to, ejk::detail::DeviceMemory from, size_t at, size_t bytes) override {
    real_.read(to, from, at, bytes);
  }
  void copy(ejk::detail::DeviceMemory to, size_t to_at, ejk::detail::DeviceMemory from,
            size_t from_at, size_t bytes) override {
    real_.copy(to, to_at, from, from_at, bytes);
  }
  void fill(ejk::detail::DeviceMemory m, size_t at, size_t bytes, uint8_t value) override {
    real_.fill(m, at, bytes, value);
  }
  std::string_view dialect() const override { return real_.dialect(); }
  std::shared_ptr<ejk::detail::DeviceProgram> load(const std::string&,
                                                   std::vector<ejk::detail::KernelFacts>) override {
    return nullptr;
  }
  void launch(ejk::detail::DeviceKernel& kernel, const ejk::Grid& grid,
              std::span<const ejk::detail::LaunchArgument> arguments) override {
    real_.launch(kernel, grid, arguments);
  }
  void wait() override { real_.wait(); }
  double seconds_of(const std::function<void()>& enqueue) override {
    return real_.seconds_of(enqueue);
  }
  void* queue() override { return real_.queue(); }

 private:
  ejk::detail::Backend& real_;
  const Control& control_;
};

// From now on the device's programs are spoilt. Nothing of this is destroyed: threads keep its
// kernels, and a driver's data of the main thread (Oclgrind has some) end before statics do.
inline const SpoilingBackend& spoil(ejk::Device& device, const Control& control) {
  auto* spoiling = new SpoilingBackend(*device.backend, control);
  device.backend = spoiling;
  return *spoiling;
}

// Every operation with every control that is for it.
inline std::vector<std::pair<ejk::ops::DeviceOp, Control>> controlled_ops(ejk::Platform on) {
  std::vector<std::pair<ejk::ops::DeviceOp, Control>> all;
  for (const auto& op : ejk::ops::device_ops)
    for (const Control& control : controls)
      if (control.is_for(op.name) && (control.on_cuda || on != ejk::Platform::cuda))
        all.emplace_back(op, control);
  return all;
}

}  // namespace device_ops
