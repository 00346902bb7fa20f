// SPDX-License-Identifier: Apache-2.0
// The operations as CUDA kernels on the emulated driver, which finds races, divergent barriers and
// what is read or written beside memory.
#include <gtest/gtest.h>

#include "cuda/emulated_cuda.h"
#include "ops/devices/frame.h"

namespace device_ops {
namespace {

// A new driver for each test, as an error stays for good. Threads keep kernels, so nothing is
// closed.
const ejk::Device& opened() {
  const auto& platform = *new ejk::detail::OpenedPlatform(ejk::detail::open_cuda());
  if (platform.devices.empty()) throw std::runtime_error(platform.why_none);
  return platform.devices[0];
}

class OnEmulatedCuda : public testing::TestWithParam<ejk::ops::DeviceOp> {
 protected:
  EmulatedCuda emulation;
};

TEST_P(OnEmulatedCuda, EveryConfigGivesWhatTheReferenceGives) {
  const Findings findings = check(GetParam(), opened());
  EXPECT_GE(findings.runs, 6);
  for (const std::string& problem : findings.problems) ADD_FAILURE() << problem;
  EXPECT_EQ(emulation.finding(), "");
}

INSTANTIATE_TEST_SUITE_P(Ops, OnEmulatedCuda, testing::ValuesIn(ejk::ops::device_ops),
                         [](const auto& op) { return std::string(op.param.name); });

class SpoiltOnEmulatedCuda : public testing::TestWithParam<std::pair<ejk::ops::DeviceOp, Control>> {
 protected:
  EmulatedCuda emulation;
};

TEST_P(SpoiltOnEmulatedCuda, IsFound) {
  const auto& [op, control] = GetParam();
  ejk::Device device = opened();
  auto& backend = *new SpoilingBackend(*device.backend, control);
  device.backend = &backend;
  bool is_found = false;
  try {
    is_found = !check(op, device, Until::first_problem).problems.empty();
  } catch (const ejk::Error&) {  // nothing works there any more
    is_found = emulation.finding() != "";
  }
  EXPECT_GT(backend.changed, 0) << "nothing to spoil";
  EXPECT_TRUE(is_found);
}

INSTANTIATE_TEST_SUITE_P(Ops, SpoiltOnEmulatedCuda,
                         testing::ValuesIn(controlled_ops(ejk::Platform::cuda)), [](const auto& p) {
                           return std::string(p.param.first.name) + "_" +
                                  std::string(p.param.second.name);
                         });

}  // namespace
}  // namespace device_ops
