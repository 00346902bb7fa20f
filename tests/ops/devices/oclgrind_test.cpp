// SPDX-License-Identifier: Apache-2.0
// The operations on Oclgrind, which runs OpenCL kernels step by step and finds races, divergent
// barriers and what is read or written beside memory. Heuristics only, as it is slow.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/device.h>

#include "ops/devices/frame.h"

namespace device_ops {
namespace {

using testing::HasSubstr;

const std::string& log_file() {
  static const std::string file = testing::TempDir() + "oclgrind.log";
  return file;
}

// Before anyone asks for devices: the loader is told of no other driver.
const bool is_chosen = [] {
  setenv("OCL_ICD_VENDORS", EJK_TEST_OCLGRIND, 1);
  std::remove(log_file().c_str());  // of a run before
  setenv("OCLGRIND_DATA_RACES", "1", 1);
  setenv("OCLGRIND_LOG", log_file().c_str(), 1);
  setenv("EJK_TEST_SAMPLES", "0", 1);
  return true;
}();

// What it has written since this was asked last.
std::string new_findings() {
  static std::streamoff read = 0;
  std::ifstream file(log_file());
  file.seekg(read);
  std::ostringstream text;
  text << file.rdbuf();
  read += static_cast<std::streamoff>(text.str().size());
  return text.str();
}

class OnOclgrind : public testing::TestWithParam<ejk::ops::DeviceOp> {};

TEST_P(OnOclgrind, NothingIsFound) {
  new_findings();
  const Findings findings = check(GetParam(), ejk::devices("opencl").at(0));
  EXPECT_GT(findings.runs, 0);
  for (const std::string& problem : findings.problems) ADD_FAILURE() << problem;
  GetParam().cases(ejk::devices("opencl").at(0), [](const ejk::ops::DeviceCase& c) {
    for (const ejk::AnyConfig& config : sampled_configs(c, 0)) c.run(config);
  });
  EXPECT_EQ(new_findings(), "");
}

INSTANTIATE_TEST_SUITE_P(Ops, OnOclgrind, testing::ValuesIn(ejk::ops::device_ops),
                         [](const auto& op) { return std::string(op.param.name); });

// One config of the first case that has a group of several items, on arrays of exactly their size.
std::string found_with(const Control& control) {
  new_findings();
  ejk::Device device = ejk::devices("opencl").at(0);
  const SpoilingBackend& spoiling = spoil(device, control);
  bool is_first = true;
  ejk::ops::rms_norm_cases(device, [&](const ejk::ops::DeviceCase& c) {
    if (std::exchange(is_first, false)) c.run(sampled_configs(c, 0).back());
  });
  EXPECT_GT(spoiling.changed, 0) << "nothing to spoil";
  return new_findings();
}

TEST(OclgrindTest, FindsAMissingBarrier) {
  EXPECT_THAT(found_with({"barrier", "", "barrier(CLK_LOCAL_MEM_FENCE);", ";"}),
              HasSubstr("data race"));
}
TEST(OclgrindTest, FindsADivergentBarrier) {
  EXPECT_THAT(found_with({"divergent", "", "barrier(CLK_LOCAL_MEM_FENCE);",
                          "if (get_local_id(0) > 0) barrier(CLK_LOCAL_MEM_FENCE);"}),
              HasSubstr("divergence"));
}
TEST(OclgrindTest, FindsWhatIsReadAndWrittenBeside) {
  const std::string found = found_with({"bound", "", "min(WIDTH, columns - c)", "WIDTH"});
  EXPECT_THAT(found, HasSubstr("Invalid read"));
  EXPECT_THAT(found, HasSubstr("Invalid write"));
}

}  // namespace
}  // namespace device_ops
