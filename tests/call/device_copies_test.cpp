// SPDX-License-Identifier: Apache-2.0
// Tuning on devices: private copies with patterns around them, poisoned outputs, references.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_device.h"

namespace ejk {
namespace {

using testing::Contains;
using testing::ElementsAre;

using In = DeviceView<const float, 1>;
using InOut = DeviceView<float, 1>;

// Runs every candidate once, as a tuning does, and notes what it saw.
class Notes : public Tuner {
 public:
  TuneResult tune(const TuneTask& task) override {
    for (uint64_t i = 0; i < task.candidates->size(); ++i) {
      task.trial->reset();
      untouched.push_back(floats(task.trial->outputs().at(0)));
      task.trial->run(task.candidates->config(i));
      task.trial->wait();
      overruns.push_back(task.trial->overrun().value_or("none"));
      outputs.push_back(floats(task.trial->outputs().at(0)));
    }
    task.trial->reset();
    if (task.trial->run_reference()) reference = floats(task.trial->outputs().at(0));
    repeatable = task.trial->repeatable();
    device = task.trial->device();
    TuneResult result;
    result.outcome = Outcome::tuned;
    result.winner = 0;
    result.candidates.resize(task.candidates->size());
    return result;
  }
  static std::vector<float> floats(const OutputBytes& output) {
    std::vector<float> values(output.bytes.size() / sizeof(float));
    std::memcpy(values.data(), output.bytes.data(), output.bytes.size());
    return values;
  }

  bool repeatable = true;
  const Device* device = nullptr;
  std::vector<std::vector<float>> untouched, outputs;
  std::vector<std::string> overruns;
  std::vector<float> reference;
};

struct Tile {
  int beside = 0;  // elements past the end (before the begin) that are written too
};

// y += x
struct Adds {
  static constexpr std::string_view op_id = "adds";
  void run_gpu(const Tile& c, In x, InOut y) const {
    for (int64_t i = 0; i < y.size(); ++i) fakes::elements(y)[i] += fakes::elements(x)[i];
    if (c.beside > 0) fakes::elements(y, y.size(), c.beside).back() = 7;
    if (c.beside < 0) fakes::elements(y, c.beside, 1)[0] = 7;
  }
  std::vector<Tile> candidate_cfgs_gpu(const Invocation&) const { return {{0}, {3}, {-2}, {0}}; }
  void reference(std::span<const float> x, std::span<float> y) const {
    for (size_t i = 0; i < y.size(); ++i) y[i] += 100 * x[i];
  }
};

// y = 2 x
struct Doubles {
  static constexpr std::string_view op_id = "doubles";
  void run_gpu(const Tile&, In x, Out<InOut> y) const {
    for (int64_t i = 0; i < x.size() - 1; ++i) fakes::elements(*y)[i] = 2 * fakes::elements(x)[i];
  }
  std::vector<Tile> candidate_cfgs_gpu(const Invocation&) const { return {{0}}; }
};

std::vector<float> values(const Tensor& t) {
  const Tensor here = t.to(cpu_device());
  return {here.data<float>(), here.data<float>() + here.size()};
}

Executor executor_with(std::shared_ptr<Tuner> tuner) {
  SelectorOptions options;
  options.policy = AutotunePolicy{};
  options.tuner = std::move(tuner);
  return Executor(std::move(options));
}

TEST(DeviceCopies, WorkOnPrivateCopies) {
  fakes::FakeGpu gpu;
  const auto notes = std::make_shared<Notes>();
  const Executor e = executor_with(notes);
  {
    const Tensor x = Tensor::of<float>({2}, std::vector<float>{1, 2}).to(gpu.device),
                 y = Tensor::of<float>({2}, std::vector<float>{10, 20}).to(gpu.device);
    e(Adds{}, x, y);
    EXPECT_THAT(values(y), ElementsAre(11, 22)) << "by the real run only";
    EXPECT_EQ(gpu.memory.blocks(), 2u) << "the copies are gone";
  }
  EXPECT_THAT(notes->untouched.back(), ElementsAre(10, 20)) << "each begins with the original";
  EXPECT_THAT(notes->outputs.front(), ElementsAre(11, 22));
  EXPECT_THAT(notes->outputs.back(), ElementsAre(11, 22));
  EXPECT_THAT(notes->reference, ElementsAre(110, 220)) << "computed on the CPU";
  EXPECT_FALSE(notes->repeatable);
  EXPECT_EQ(notes->device, &gpu.device);
  EXPECT_THAT(gpu.memory.take_log(), Contains("wait"));
}

TEST(DeviceCopies, SeeWhatIsWrittenBesideAnArray) {
  fakes::FakeGpu gpu;
  const auto notes = std::make_shared<Notes>();
  const Tensor x = Tensor(DType::float32, {2}, gpu.device), y = x.clone();
  executor_with(notes)(Adds{}, x, y);
  EXPECT_THAT(
      notes->overruns,
      ElementsAre("none", "wrote at least 12 bytes past the end of argument 1 (float32[2])",
                  "wrote at least 8 bytes before the begin of argument 1 (float32[2])", "none"))
      << "the pattern is whole again for the next";
}

TEST(DeviceCopies, PoisonOutputs) {
  fakes::FakeGpu gpu;
  const auto notes = std::make_shared<Notes>();
  const Tensor x = Tensor::of<float>({3}, std::vector<float>{1, 2, 3}).to(gpu.device),
               y = Tensor(DType::float32, {3}, gpu.device);
  executor_with(notes)(Doubles{}, x, y);
  EXPECT_TRUE(std::isnan(notes->untouched[0][0]));
  EXPECT_EQ(notes->outputs[0][1], 4);
  EXPECT_TRUE(std::isnan(notes->outputs[0][2])) << "left out by the kernel";
  EXPECT_THAT(values(y), ElementsAre(2, 4, 0));
}

TEST(DeviceCopies, CopyPartsOfTensors) {
  fakes::FakeGpu gpu;
  const auto notes = std::make_shared<Notes>();
  const Tensor x = Tensor::of<float>({4}, std::vector<float>{1, 2, 3, 4}).to(gpu.device),
               y = x.clone();
  executor_with(notes)(Adds{}, x.sliced(0, 1, 3), y.sliced(0, 2, 4));
  EXPECT_THAT(notes->untouched[0], ElementsAre(3, 4));
  EXPECT_THAT(notes->outputs[0], ElementsAre(5, 7));
  EXPECT_THAT(values(y), ElementsAre(1, 2, 5, 7));
}

struct AddsRightly : Adds {
  static constexpr std::string_view op_id = "adds_rightly";
  void reference(std::span<const float> x, std::span<float> y) const {
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }
};

TEST(DeviceCopies, AreTunedToTheEnd) {
  fakes::FakeGpu gpu;
  const auto kinds_of = [&](const auto& kernel) {
    const Tensor x = Tensor::of<float>({2}, std::vector<float>{1, 2}).to(gpu.device), y = x.clone();
    std::vector<std::string> kinds;
    const auto tuned = executor_with(std::make_shared<Tuner>()).tune(kernel, x, y);
    EXPECT_EQ(tuned.config.beside, 0);
    EXPECT_EQ(tuned.entry.id.device, "opencl|fake|0");
    EXPECT_EQ(tuned.entry.device, gpu.device.identity);
    for (const Measurement& m : tuned.entry.candidates) kinds.push_back(m.kind);
    return kinds;
  };
  EXPECT_THAT(kinds_of(AddsRightly{}), ElementsAre("", "out_of_bounds", "out_of_bounds", ""));
  EXPECT_THROW(kinds_of(Adds{}), Error) << "all differ from the reference";
}

}  // namespace
}  // namespace ejk
