// SPDX-License-Identifier: Apache-2.0
#include <ejk/registry.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

EJK_REGISTER(fakes::Show);

struct Twice : fakes::Show {
  static constexpr std::string_view op_id = "twice";
};
struct TwiceAgain : fakes::Show {
  static constexpr std::string_view op_id = "twice";
};
EJK_REGISTER(Twice);
EJK_REGISTER(TwiceAgain);

std::string problem_with(const std::string& path) {
  try {
    ejk::load_kernels(path);
    return "";
  } catch (const ejk::Error& error) {
    return error.what();
  }
}

TEST(Registry, KernelsAreKnownByOp) {
  EXPECT_THAT(ejk::registered_kernels(), Contains("show@v3"));
  EXPECT_TRUE(ejk::is_registered("show@v3"));
  EXPECT_FALSE(ejk::is_registered("show@v4"));
}

TEST(Registry, TwoKernelsOfOneOpAreRefused) {
  ejk::RecordedCall call;
  call.id.op = "twice@v3";
  try {
    ejk::rebuild_call(call);
    FAIL();
  } catch (const ejk::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("two kernels are registered for that op"));
    EXPECT_THAT(error.what(), HasSubstr("TwiceAgain"));
  }
}

TEST(Registry, KernelsOfASharedLibraryAreTunedFromTheirRecords) {
  EXPECT_THAT(ejk::load_kernels(EJK_TEST_PLUGINS "/libkernels.so"),
              ElementsAre("plugin.shifted@v1"));
  EXPECT_THAT(ejk::load_kernels(EJK_TEST_PLUGINS "/libkernels.so"),
              ElementsAre("plugin.shifted@v1"))
      << "twice is once";

  // As if a program that has the kernel had recorded it.
  const fakes::TempDir folder;
  ejk::RecordedCall call;
  call.arguments = ejk::parse_json(
      R"([{"dtype":"float32","shape":[64],"data":{"mean":1,"deviation":1,"seed":1}},
          {"dtype":"float32","shape":[64]}])");
  const std::string spec = R"({"args_spec":[{"dtype":"float32","shape":[64]}],"batch_axes":null,)"
                           R"("kwargs_spec":{},"method":null})";
  call.id = {ejk::cpu_device().fingerprint, "plugin.shifted@v1",
             ejk::short_hash(std::string_view(spec)), spec};
  const auto made = ejk::rebuild_call(call);
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.budget_seconds = 5};
  ejk::ConfigSelectorChain selector(options);
  const auto [choice, entry] = selector.tune(made->invocation(), made->kernel());
  EXPECT_NE(entry.outcome, ejk::Outcome::failed);
  EXPECT_EQ(entry.evidence.data, "recorded sketch");
}

TEST(Registry, OtherLibrariesAreRefusedWithAReason) {
  EXPECT_THAT(problem_with("/nowhere/lib.so"),
              HasSubstr("cannot load kernels from /nowhere/lib.so"));
  EXPECT_THAT(problem_with(EJK_TEST_PLUGINS "/libnone.so"), HasSubstr("not a library of kernels"));
  EXPECT_THAT(problem_with(EJK_TEST_PLUGINS "/libold.so"),
              HasSubstr("built with version 0.0.9 of this library, which is"));
}

}  // namespace
