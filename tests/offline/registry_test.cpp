// SPDX-License-Identifier: Apache-2.0
#include <ejk/registry.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "paths.h"

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

// y += alpha x
struct Axpy {
  static constexpr std::string_view op_id = "axpy", version = "1";
  struct Config {
    int block = 1;
  };
  struct Residuals {};
  using In = std::span<const float>;
  void run(const Config&, float alpha, In x, std::span<float> y) const {
    for (size_t i = 0; i < y.size(); ++i) y[i] += alpha * x[i];
  }
  Residuals fwd_with_residuals(const Config& c, float alpha, In x, std::span<float> y) const {
    return run(c, alpha, x, y), Residuals{};
  }
  std::tuple<float, std::vector<float>, std::vector<float>> vjp(const Config&, const Residuals&,
                                                                In dy, float alpha, In x,
                                                                std::span<float>) const {
    std::vector<float> dx;
    float dalpha = 0;
    for (size_t i = 0; i < x.size(); ++i) dx.push_back(alpha * dy[i]), dalpha += x[i] * dy[i];
    return {dalpha, dx, {dy.begin(), dy.end()}};
  }
};
EJK_REGISTER(Axpy);

struct Square {
  static constexpr std::string_view op_id = "square", version = "1";
  using Config = Axpy::Config;
  ejk::Tensor run(const Config&, const ejk::Tensor& x) const {
    const ejk::Tensor out = x.clone();
    for (int64_t i = 0; i < x.size(); ++i) out.data<float>()[i] *= x.data<float>()[i];
    return out;
  }
  std::tuple<ejk::Tensor> custom_vjp(const Config&, const std::tuple<ejk::Tensor>& arguments,
                                     const ejk::Tensor& dy) const {
    const ejk::Tensor dx = dy.clone();
    for (int64_t i = 0; i < dx.size(); ++i)
      dx.data<float>()[i] *= 2 * std::get<0>(arguments).data<float>()[i];
    return {dx};
  }
};
EJK_REGISTER(Square);

struct Plain {
  static constexpr std::string_view op_id = "plain", version = "1";
  using Config = Axpy::Config;
  float run(const Config&, std::span<const float> x) const { return x[0]; }
};
EJK_REGISTER(Plain);

ejk::Tensor line(std::vector<float> values) {
  return ejk::Tensor::of<float>({std::ssize(values)}, std::span<const float>(values));
}
std::vector<float> elements(const ejk::Tensor& t) {
  return {t.data<float>(), t.data<float>() + t.size()};
}
ejk::Value given(int64_t index) { return ejk::Value::object({{"given", index}}); }

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
  EXPECT_THAT(ejk::load_kernels(test::plugin("kernels")),
              ElementsAre("plugin.shifted@v1", "plugin.row_sums@v1"));
  EXPECT_THAT(ejk::load_kernels(test::plugin("kernels")),
              ElementsAre("plugin.shifted@v1", "plugin.row_sums@v1"))
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

TEST(Registry, AReadyCallTakesOtherArraysEachTime) {
  const ejk::Value config = ejk::parse_json(R"({"block": 3})");
  const ejk::Value arguments(ejk::Value::Array{ejk::Value(2.0), given(0), given(1)});
  const auto axpy = ejk::ready_call("axpy@v1", arguments, config);
  for (const float from : {1.f, 5.f}) {
    const ejk::Tensor y = line({from, 0});
    EXPECT_THAT(axpy->run({line({3, 4}), y}), testing::IsEmpty());
    EXPECT_THAT(elements(y), ElementsAre(from + 6, 8));
  }
  const auto square = ejk::ready_call("square@v1", ejk::Value(ejk::Value::Array{given(0)}), config);
  EXPECT_THAT(elements(square->run({line({3, 4})}).at(0)), ElementsAre(9, 16));
}

TEST(Registry, AReadyCallPullsCotangentsBack) {
  const ejk::Value config = ejk::parse_json(R"({"block": 3})");
  const ejk::Value arguments(ejk::Value::Array{ejk::Value(2.0), given(0), given(1)});
  const auto axpy = ejk::ready_call("axpy@v1", arguments, config);
  const auto gradients = axpy->pull({line({3, 4}), line({1, 1})}, {line({10, 20})});
  ASSERT_EQ(gradients.size(), 3u);
  EXPECT_EQ(gradients[0]->data<float>()[0], 110);
  EXPECT_THAT(elements(*gradients[1]), ElementsAre(20, 40));
  EXPECT_THAT(elements(*gradients[2]), ElementsAre(10, 20));

  const ejk::Value only(ejk::Value::Array{given(0)});
  const auto dx = ejk::ready_call("square@v1", only, config)->pull({line({3, 4})}, {line({1, 2})});
  EXPECT_THAT(elements(*dx.at(0)), ElementsAre(6, 16));

  EXPECT_TRUE(ejk::has_gradient("axpy@v1"));
  EXPECT_TRUE(ejk::has_gradient("square@v1"));
  EXPECT_FALSE(ejk::has_gradient("plain@v1"));
  EXPECT_THROW(ejk::ready_call("plain@v1", only, config)->pull({line({3})}, {line({1})}),
               ejk::Error);
  EXPECT_THROW(ejk::ready_call("square@v1", only, config)->pull({line({3})}, {}), ejk::Error);
  EXPECT_THROW(ejk::ready_call("square@v1", only, ejk::parse_json(R"({"none": 1})")), ejk::Error);
  EXPECT_THROW(ejk::has_gradient("no such op@v1"), ejk::Error);
}

TEST(Registry, OtherLibrariesAreRefusedWithAReason) {
  EXPECT_THAT(problem_with("/nowhere/lib.so"),
              HasSubstr("cannot load kernels from /nowhere/lib.so"));
  EXPECT_THAT(problem_with(test::plugin("none")), HasSubstr("not a library of kernels"));
  EXPECT_THAT(problem_with(test::plugin("old")),
              HasSubstr("built with version 0.0.9 of this library, which is"));
}

TEST(Registry, TablesOfSomethingElseAreRefused) {
  const auto problem_with_table = [](const char* table) {
    ::setenv("EJK_TEST_TABLE", table, 1);
    return problem_with(test::plugin("foreign"));
  };
  for (const char* table : {"", "zeroed", "text", "numbers", "nowhere", "no version"})
    EXPECT_THAT(problem_with_table(table), HasSubstr("its ejk_plugin is something else")) << table;
  EXPECT_THAT(problem_with(test::plugin("data")), HasSubstr("its ejk_plugin is something else"));
  EXPECT_THAT(problem_with_table("other size"), HasSubstr("built with other headers"));
  EXPECT_THAT(problem_with_table("empty"), HasSubstr("registers no kernel"));
  for (const char* table : {"nameless", "no functions", "no config"})
    EXPECT_THAT(problem_with_table(table), HasSubstr("a kernel without name or functions"))
        << table;
  EXPECT_FALSE(ejk::is_registered("foreign@v1"));
  EXPECT_FALSE(ejk::is_registered("foreign@v2"));
}

}  // namespace
