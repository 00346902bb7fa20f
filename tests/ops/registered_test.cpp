// SPDX-License-Identifier: Apache-2.0
// The built-in operations by name: their recorded calls are made again and tuned.
#include <ejk/ops.h>

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "ops/common.h"

namespace {

using ejk::BFloat16;
using ejk::DType;
using ejk::Tensor;
using ops_test::normals;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::SizeIs;

const std::vector<std::string> all_ops = {
    "decode_attention@v1", "flash_attention@v1",        "grouped_matmul@v1", "layer_norm@v1",
    "matmul@v1",           "paged_decode_attention@v1", "rms_norm@v1",       "softmax@v1"};

Tensor tensor(DType dtype, std::vector<int64_t> shape) {
  const Tensor wide = normals(std::move(shape), 1);
  if (dtype == DType::float32) return wide;
  Tensor out = Tensor::of<BFloat16>(wide.shape());
  for (int64_t i = 0; i < out.size(); ++i)
    out.data<BFloat16>()[i] = BFloat16(wide.data<float>()[i]);
  return out;
}

// Every operation once with this element type, as a program calls them.
void call_all(DType dtype) {
  const auto made = [&](std::vector<int64_t> shape) { return tensor(dtype, std::move(shape)); };
  ejk::ops::matmul(made({3, 5}), made({5, 4}), {.bias = made({4})});
  const Tensor sizes = Tensor::of<int32_t>({2}, std::vector<int32_t>{2, 1});
  ejk::ops::grouped_matmul(made({4, 3}), made({2, 3, 5}), sizes);
  ejk::ops::flash_attention(made({1, 6, 2, 4}), made({1, 7, 1, 4}), made({1, 7, 1, 4}),
                            {.causal = true});
  ejk::ops::decode_attention(made({2, 2, 4}), made({2, 5, 1, 4}), made({2, 5, 1, 4}));
  const Tensor table = Tensor::of<int32_t>({2, 2}, std::vector<int32_t>{2, 0, 1, 2});
  ejk::ops::decode_attention_paged(made({2, 2, 4}), made({3, 4, 1, 4}), made({3, 4, 1, 4}), table,
                                   std::vector<int32_t>{6, 3});
  ejk::ops::rms_norm(made({3, 8}), made({8}));
  ejk::ops::layer_norm(made({3, 8}), made({8}), std::nullopt);
  ejk::ops::softmax(made({3, 8}), 0.5f);
}

// A folder in which a program has recorded all operations with all types.
class Registered : public testing::Test {
 protected:
  Registered() {
    const auto recording = std::make_shared<ejk::Recording>(folder.path());
    {
      const auto no_tuning = ejk::policy_override({.allow_autotune = false});
      const auto scope = ejk::record_calls(recording);
      call_all(DType::float32);
      call_all(DType::bfloat16);
      ejk::ops::matmul(tensor(DType::bfloat16, {2, 3}), tensor(DType::bfloat16, {3, 2}),
                       {.result = DType::bfloat16});
    }
    recording->flush();
  }
  fakes::TempDir folder;
};

TEST_F(Registered, ThreadsMayDoItAtOnceAndTwiceIsOnce) {
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(&ejk::ops::register_kernels);
  }
  EXPECT_THAT(ejk::registered_kernels(), IsSupersetOf(all_ops));
  EXPECT_THAT(ejk::registered_kernels(), SizeIs(all_ops.size()));
}

TEST_F(Registered, RecordedCallsOfEveryOperationAndTypeAreMadeAgain) {
  ejk::ops::register_kernels();
  std::map<std::string, std::string> why_not;
  const ejk::Invocations made =
      ejk::get_invocations(folder.path(), ejk::cpu_device().fingerprint, &why_not);
  EXPECT_THAT(why_not, IsEmpty());
  std::vector<std::string> ops;
  for (const auto& [op, calls] : made) {
    ops.push_back(op);
    EXPECT_THAT(calls, SizeIs(op == "matmul@v1" ? 3 : 2)) << op;
    for (const auto& [key, call] : calls) {
      EXPECT_EQ(call->invocation().call_key(), key) << op;
      EXPECT_GT(call->kernel().candidate_cfgs(call->invocation())->size(), 0u) << op;
    }
  }
  EXPECT_EQ(ops, all_ops);
}

TEST_F(Registered, RecordedCallsAreTunedForTheProgramThatMadeThem) {
  ejk::ops::register_kernels();
  ejk::SelectorOptions options;
  options.persistent = std::make_shared<ejk::PersistentCache>(folder.path() + "/store");
  ejk::ConfigSelectorChain selector(options);
  const auto result = ejk::autotune_recorded(
      selector, {.folder = folder.path(), .ops = {"softmax"}, .budget_seconds = 60});
  EXPECT_THAT(result.entries, SizeIs(2)) << result.text();
  EXPECT_THAT(result.skipped, IsEmpty()) << result.text();

  options.policy = ejk::AutotunePolicy{.allow_autotune = false};
  const ejk::Executor program(options);
  const Tensor x = normals({3, 8}, 1), out = Tensor::of<float>({3, 8});
  const auto choice = program.choose_config(ejk::ops::Softmax<float>{}, x.strided<float, 2>(), 0.5f,
                                            out.strided<float, 2>());
  EXPECT_EQ(choice.origin, ejk::Origin::persistent);
}

}  // namespace
