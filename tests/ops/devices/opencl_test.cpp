// SPDX-License-Identifier: Apache-2.0
// The operations on OpenCL devices: right with every config, and mistakes in them are found.
#include <gtest/gtest.h>

#include <ejk/device.h>

#include "ops/devices/frame.h"

namespace device_ops {
namespace {

class OnOpenCl : public testing::TestWithParam<ejk::ops::DeviceOp> {
 protected:
  void SetUp() override {
    if (ejk::devices("opencl").empty()) GTEST_SKIP() << why_no_devices(ejk::Platform::opencl);
  }
};

TEST_P(OnOpenCl, EveryConfigGivesWhatTheReferenceGives) {
  const Findings findings = check(GetParam(), ejk::devices("opencl").at(0));
  EXPECT_GE(findings.runs, 10);
  for (const std::string& problem : findings.problems) ADD_FAILURE() << problem;
}

INSTANTIATE_TEST_SUITE_P(Ops, OnOpenCl, testing::ValuesIn(ejk::ops::device_ops),
                         [](const auto& op) { return std::string(op.param.name); });

class SpoiltOnOpenCl : public testing::TestWithParam<std::pair<ejk::ops::DeviceOp, Control>> {};

TEST_P(SpoiltOnOpenCl, IsFound) {
  if (ejk::devices("opencl").empty()) GTEST_SKIP() << why_no_devices(ejk::Platform::opencl);
  const auto& [op, control] = GetParam();
  ejk::Device device = ejk::devices("opencl").at(0);
  const SpoilingBackend& spoiling = spoil(device, control);
  const Findings findings = check(op, device, Until::first_problem);
  EXPECT_GT(spoiling.changed, 0) << "nothing to spoil";
  EXPECT_FALSE(findings.problems.empty());
}

INSTANTIATE_TEST_SUITE_P(Ops, SpoiltOnOpenCl,
                         testing::ValuesIn(controlled_ops(ejk::Platform::opencl)),
                         [](const auto& p) {
                           return std::string(p.param.first.name) + "_" +
                                  std::string(p.param.second.name);
                         });

}  // namespace
}  // namespace device_ops
