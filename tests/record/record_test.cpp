// SPDX-License-Identifier: Apache-2.0
#include <ejk/record.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "store_fixture.h"

using ejk::Recording;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

namespace {

// Every kind of argument that can be made again.
struct Many {
  static constexpr std::string_view op_id = "many", version = "2";
  struct Config {
    int block = 1;
  };
  struct Settings {
    int depth = 0;
    std::string mode;
  };
  enum class Kind { one, two };

  int scale = 3;  // a member

  void run(const Config&, ejk::View<const float, 2> x, std::span<const int32_t> table,
           ejk::StridedView<float, 2> strided, const ejk::Tensor& tensor,
           const std::vector<int64_t>& offsets, int n, float factor, ejk::Keyed<double> limit,
           ejk::Unkeyed<int> seed, std::string_view name, const Settings&, Kind,
           const std::optional<ejk::View<const float, 1>>& mask,
           const std::tuple<int, std::span<const float>>&,
           const std::vector<std::span<const float>>& parts, ejk::Named<"causal", bool, false>,
           ejk::Out<std::span<float>> out) const {
    static_cast<void>(x), static_cast<void>(table), static_cast<void>(strided);
    static_cast<void>(tensor), static_cast<void>(offsets), static_cast<void>(mask);
    static_cast<void>(parts), static_cast<void>(name);
    for (float& v : *out) v = factor * float(n) + float(limit) + 0.f * float(seed);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}}; }
};
EJK_REGISTER(Many);
EJK_REGISTER(fakes::Show);

// Gives back the integers it is called with.
template <class T>
struct Echo {
  static constexpr std::string_view op_id = sizeof(T) == 1 ? "echo8" : "echo64", version = "1";
  struct Config {
    int block = 1;
  };
  ejk::Tensor run(const Config&, ejk::StridedView<const T, 1> x) const {
    const ejk::Tensor out = ejk::Tensor::of<T>({x.size()});
    for (int64_t i = 0; i < x.size(); ++i) static_cast<T*>(out.any().data)[i] = x(i);
    return out;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};
EJK_REGISTER(Echo<int8_t>);
EJK_REGISTER(Echo<int64_t>);

class Record : public testing::Test {
 protected:
  std::shared_ptr<Recording> open(Recording::Options options = {}) {
    options.on_warning = said.sink();
    return std::make_shared<Recording>(folder.path() + "/recorded", options);
  }
  ejk::Executor recording_into(const std::shared_ptr<Recording>& recording) {
    ejk::SelectorOptions options = setup.options();
    options.on_event = {};
    options.recording = recording;
    return ejk::Executor(std::move(options));
  }
  std::map<std::string, ejk::RecordedCall> calls_of(const std::string& op) {
    return ejk::read_recorded(folder.path() + "/recorded",
                              said.sink())[ejk::cpu_device().fingerprint][op];
  }

  fakes::TempDir folder;
  fakes::WarningLog said;
  fakes::Setup setup;
  std::vector<float> x = std::vector<float>(8, 0.5f), longer = std::vector<float>(9), y{0, 0};
};

TEST_F(Record, KeepsEachDistinctCallWithItsCountAndTime) {
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  for (int i = 0; i < 200; ++i) executor(fakes::Show{}, x, y);
  for (int i = 0; i < 3; ++i) executor(fakes::Show{}, longer, y);
  ASSERT_TRUE(recording->flush());

  const auto calls = calls_of("show@v3");
  ASSERT_THAT(calls, SizeIs(2));
  const auto& call = calls.at(executor.describe(fakes::Show{}, x, y).call_key());
  EXPECT_EQ(call.calls, 200u);
  EXPECT_GE(call.timed_calls, 8u);
  EXPECT_LT(call.timed_calls, 30u);
  EXPECT_GT(call.timed_seconds, 0);
  EXPECT_GT(call.seconds(), call.timed_seconds);
  EXPECT_EQ(call.id.spec, executor.describe(fakes::Show{}, x, y).spec());
  EXPECT_EQ(calls.at(executor.describe(fakes::Show{}, longer, y).call_key()).calls, 3u);
  EXPECT_THAT(said.take(), IsEmpty());
}

TEST_F(Record, CallsAreCountedAfterATuningToo) {
  auto recording = open();
  ejk::SelectorOptions options = setup.options(folder.path() + "/store");
  options.on_event = {};
  options.recording = recording;
  options.policy->cache_miss_fallback = ejk::Fallback::background;
  options.policy->background_share = 0;  // only idle() tunes
  const ejk::Executor executor(options);
  const auto call_thrice = [&] {
    for (int i = 0; i < 3; ++i) executor(fakes::Show{}, x, y);
  };
  executor.tune(fakes::Show{}, longer, y);
  for (int i = 0; i < 3; ++i) executor(fakes::Show{}, longer, y);
  call_thrice();
  EXPECT_EQ(executor.chain().idle(60), 0u);
  call_thrice();
  executor.tune(fakes::Show{}, x, y);
  call_thrice();
  ASSERT_TRUE(recording->flush());
  const std::string key = executor.describe(fakes::Show{}, x, y).call_key();
  const auto made = ejk::rebuild_call(calls_of("show@v3").at(key));
  executor.chain().resume(made->invocation(), made->kernel());
  call_thrice();
  ASSERT_TRUE(recording->flush());
  const auto calls = calls_of("show@v3");
  EXPECT_EQ(calls.at(key).calls, 12u);
  EXPECT_EQ(calls.at(executor.describe(fakes::Show{}, longer, y).call_key()).calls, 3u);
}

TEST_F(Record, CountsGoOnWhereTheyWere) {
  for (int round = 0; round < 3; ++round) {
    const ejk::Executor executor = recording_into(open());
    for (int i = 0; i < 5; ++i) executor(fakes::Show{}, x, y);
  }
  ASSERT_THAT(calls_of("show@v3"), SizeIs(1));
  EXPECT_EQ(calls_of("show@v3").begin()->second.calls, 15u);
}

TEST_F(Record, EveryCallOfEveryThreadIsCounted) {
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::vector<float> mine{0, 0};
      for (int i = 0; i < 1000; ++i) executor(fakes::Show{}, x, mine);
    });
  for (auto& t : threads) t.join();
  recording->flush();
  EXPECT_EQ(calls_of("show@v3").begin()->second.calls, 4000u);
}

TEST_F(Record, IsWrittenBeforeTheProgramEnds) {
  auto recording = open({.first_write_seconds = 0.001});
  const ejk::Executor executor = recording_into(recording);
  executor(fakes::Show{}, x, y);
  ejk::testing::wait_until([&] { return !calls_of("show@v3").empty(); }, "the first record");
  EXPECT_THAT(calls_of("show@v3"), SizeIs(1));
}

TEST_F(Record, DataAreNotKept) {
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  std::vector<float> secret(100);
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = float(i) * 0.015625f;
  secret[50] = 0.12345679f;
  executor(fakes::Show{}, secret, y);
  recording->flush();
  for (const auto& file : ejk::testing::files_below(folder.path() + "/recorded"))
    EXPECT_THAT(ejk::testing::read_text(folder.path() + "/recorded/" + file),
                testing::Not(HasSubstr("0.1234")));
  const auto calls = calls_of("show@v3");
  const auto& sketches = calls.begin()->second.arguments.as_array();
  EXPECT_EQ(sketches.at(0).find("data")->find("max")->as_double(), 99 * 0.015625);
  EXPECT_EQ(sketches.at(1).find("data"), nullptr) << "outputs are not looked at";
}

TEST_F(Record, AConfigGivenWithTheCallLeavesNothingToRecord) {
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  executor(fakes::Show{}, {5}, x, y);
  EXPECT_TRUE(recording->flush());
  EXPECT_THAT(calls_of("show@v3"), IsEmpty());
}

TEST_F(Record, AScopeRecordsTheCallsOfItsThread) {
  auto own = open();
  auto scoped = std::make_shared<Recording>(folder.path() + "/scoped");
  const ejk::Executor executor = recording_into(own);
  executor(fakes::Show{}, x, y);
  {
    const auto scope = ejk::record_calls(scoped);
    for (int i = 0; i < 7; ++i) executor(fakes::Show{}, x, y);
    executor(fakes::Show{}, longer, y);
    std::thread([&] {
      std::vector<float> mine{0, 0};
      executor(fakes::Show{}, x, mine);
    }).join();
  }
  executor(fakes::Show{}, x, y);
  own->flush(), scoped->flush();
  const std::string key = executor.describe(fakes::Show{}, x, y).call_key();
  EXPECT_EQ(calls_of("show@v3").at(key).calls, 3u);
  auto inside = ejk::read_recorded(folder.path() + "/scoped")[ejk::cpu_device().fingerprint];
  EXPECT_THAT(inside["show@v3"], SizeIs(2));
  EXPECT_EQ(inside["show@v3"].at(key).calls, 7u);
}

TEST_F(Record, TheEnvironmentAsksForIt) {
  ::setenv("EJKERNEL_OPS_RECORD", "1", 1);
  ::setenv("EJKERNEL_OPS_RECORD_DIR", (folder.path() + "/recorded").c_str(), 1);
  {
    const ejk::Executor one(setup.options()), two(setup.options());
    one(fakes::Show{}, x, y), two(fakes::Show{}, x, y);
    EXPECT_EQ(one.chain().recording(), two.chain().recording());
  }
  ::setenv("EJKERNEL_OPS_RECORD", "yes", 1);
  EXPECT_THROW(ejk::Executor{setup.options()}, ejk::Error);
  ::setenv("EJKERNEL_OPS_RECORD", "0", 1);
  EXPECT_EQ(ejk::Executor(setup.options()).chain().recording(), nullptr);
  ::unsetenv("EJKERNEL_OPS_RECORD");
  ::unsetenv("EJKERNEL_OPS_RECORD_DIR");
  EXPECT_EQ(calls_of("show@v3").begin()->second.calls, 2u);
}

TEST_F(Record, TooManyCallsAreNotKeptAndSaidOnce) {
  auto recording = open({.most_calls = 3});
  const ejk::Executor executor = recording_into(recording);
  for (size_t n = 1; n < 9; ++n) executor(fakes::Show{}, std::vector<float>(n), y);
  recording->flush();
  EXPECT_THAT(calls_of("show@v3"), SizeIs(3));
  EXPECT_THAT(said.take(), testing::ElementsAre(HasSubstr("more than 3 different calls")));
  // Nor are more in a later process.
  {
    auto later = open({.most_calls = 3});
    recording_into(later)(fakes::Show{}, std::vector<float>(50), y);
  }
  EXPECT_THAT(calls_of("show@v3"), SizeIs(3));
}

// More than stay in memory: their counts are added to what is on disk.
TEST_F(Record, ManyMoreThanTenThousandCallsAreCountedAndSaidOnce) {
  constexpr size_t calls = sanitized ? 10'100 : 12'000;
  const ejk::testing::Scratch memory(ejk::testing::memory_directory());
  const std::vector<float> data(calls);
  {
    Recording::Options options;
    options.most_calls = 1'000'000, options.on_warning = said.sink();
    const auto recording = std::make_shared<Recording>(memory / "recorded", options);
    const ejk::Executor executor(ejk::SelectorOptions{});
    for (int round = 0; round < 2; ++round) {
      for (size_t n = 0; n < calls; ++n)
        executor.record(*recording, fakes::Show{}, std::span(data.data(), n), y);
      ASSERT_TRUE(recording->flush());
    }
    EXPECT_THAT(said.take(), testing::ElementsAre(HasSubstr("more than 10000 different calls")));
  }
  auto recorded = ejk::read_recorded(memory / "recorded", said.sink());
  const auto& kept = recorded[ejk::cpu_device().fingerprint]["show@v3"];
  EXPECT_THAT(kept, SizeIs(calls));
  for (const auto& [key, call] : kept) {
    EXPECT_EQ(call.calls, 2u);
    EXPECT_FALSE(call.arguments.is_null());
  }
  EXPECT_THAT(said.take(), IsEmpty());
}

TEST_F(Record, SeveralThatRecordAtOnceShareTheLimit) {
  auto one = open({.most_calls = 3}), two = open({.most_calls = 3});
  size_t n = 1;
  for (int i = 0; i < 3; ++i)
    for (const auto& recording : {one, two}) {
      recording_into(recording)(fakes::Show{}, std::vector<float>(n++), y);
      recording->flush();
    }
  EXPECT_THAT(calls_of("show@v3"), SizeIs(3));
}

TEST_F(Record, CallsWithoutDataCanBeAskedAbout) {
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  const auto scope = ejk::policy_override({.allow_autotune = false});
  const std::span<const float> nothing(static_cast<const float*>(nullptr), 100);
  executor.choose_config(fakes::Show{}, nothing, y);
  recording->flush();
  EXPECT_THAT(calls_of("show@v3"), SizeIs(1));
}

TEST_F(Record, ChoicesAndBatchesAreCallsToo) {
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  executor.choose_config(fakes::Show{}, x, y);
  executor.compile(fakes::Show{}, longer, y);
  const ejk::Tensor rows = ejk::Tensor::of<float>({3, 5}), out = ejk::Tensor::of<float>({3, 2});
  ejk::vmap_with_config(executor, fakes::Show{}, 0, 0)(rows, out);
  recording->flush();
  const auto calls = calls_of("show@v3");
  EXPECT_THAT(calls, SizeIs(3));
  for (const auto& [key, call] : calls) {
    EXPECT_EQ(call.calls, 1u);
    EXPECT_EQ(ejk::rebuild_call(call)->invocation().spec(), call.id.spec);
  }
}

// ---- made again ---------------------------------------------------------------------------------

struct ManyArguments {
  std::vector<float> x = std::vector<float>(12), strided = std::vector<float>(40), part{1, 2, 3};
  std::vector<int32_t> table{5, 9, 7, 5};
  std::vector<int64_t> offsets{0, 3, 4, 40};
  ejk::Tensor tensor = ejk::Tensor::of<ejk::BFloat16>({3, 2});
  std::vector<float> mask{0, 0, 1}, out{0, 0, 0};

  ManyArguments() {
    for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 ? 10.f : 12.f;
  }
};

TEST_F(Record, CallsAreMadeAgainWithTheSameKeyAndDataOfTheSameKind) {
  ManyArguments arguments;
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  const ejk::StridedView<float, 2> view(arguments.strided.data() + 9, {3, 2}, {10, -2});
  const Many kernel{5};
  auto call = [&](auto&& use) {
    use(kernel, ejk::View<const float, 2>{arguments.x.data(), {3, 4}}, arguments.table, view,
        arguments.tensor, arguments.offsets, 7, 0.25f, 1.5, 11, "name", Many::Settings{4, "fast"},
        Many::Kind::two, ejk::View<const float, 1>{arguments.mask.data(), {3}},
        std::tuple<int, std::span<const float>>{1, arguments.part},
        std::vector<std::span<const float>>{arguments.part, arguments.x}, true,
        std::span<float>(arguments.out));
  };
  call([&](auto&&... a) { executor(a...); });
  recording->flush();

  ASSERT_THAT(calls_of("many@v2"), SizeIs(1));
  const ejk::RecordedCall recorded = calls_of("many@v2").begin()->second;
  const auto made = ejk::rebuild_call(recorded);
  EXPECT_EQ(made->invocation().spec(), recorded.id.spec);
  EXPECT_EQ(made->invocation().op(), "many@v2");
  EXPECT_EQ(made->invocation().members.find("scale")->as_int(), 5);
  // The rebuilt arguments are like the recorded ones: a sketch of them says so.
  const ejk::Value again = made->kernel().sketch();
  const auto& before = recorded.arguments.as_array();
  const auto& after = again.as_array();
  ASSERT_EQ(before.size(), after.size());
  EXPECT_GE(after[0].find("data")->find("min")->as_double(), 10);
  EXPECT_LE(after[0].find("data")->find("max")->as_double(), 12);
  EXPECT_GE(after[1].find("data")->find("min")->as_int(), 5);
  EXPECT_LE(after[1].find("data")->find("max")->as_int(), 9);
  EXPECT_EQ(stable_json(*after[2].find("strides")), "[10,-2]");
  EXPECT_EQ(after[4].find("data")->find("order")->as_string(), "rising");
  EXPECT_EQ(after[4].find("data")->find("min")->as_int(), 0);
  EXPECT_EQ(after[4].find("data")->find("max")->as_int(), 40);
  for (size_t i = 5; i < 12; ++i) EXPECT_EQ(stable_json(after[i]), stable_json(before[i])) << i;
  const auto trial = made->kernel().trial(made->invocation());
  trial->reset();
  trial->run(ejk::make_config(Many::Config{1}));
  EXPECT_THAT(trial->outputs(), testing::Not(IsEmpty()));
}

TEST_F(Record, TheSameSketchGivesTheSameData) {
  const ejk::Value sketch = ejk::parse_json(
      R"({"dtype":"float32","shape":[1000],"data":{"mean":2.0,"deviation":1.0,"min":-1.0,
          "max":5.0,"zeros":0.25,"seed":7}})");
  ejk::detail::RebuiltData one, two;
  const auto a = one.array(sketch), b = two.array(sketch);
  const std::span<const float> first(static_cast<const float*>(a.data), 1000),
      second(static_cast<const float*>(b.data), 1000);
  EXPECT_TRUE(std::ranges::equal(first, second));
  const auto zeros = std::ranges::count(first, 0.f);
  EXPECT_GT(zeros, 150);
  EXPECT_LT(zeros, 350);
  EXPECT_GE(*std::ranges::min_element(first), -1.f);
  EXPECT_LE(*std::ranges::max_element(first), 5.f);
}

TEST_F(Record, EveryElementTypeCanBeMadeAgain) {
  using enum ejk::DType;
  for (const ejk::DType dtype :
       {boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16,
        float32, float64, complex64, complex128, float8_e4m3fn, float8_e5m2, int4, uint2}) {
    SCOPED_TRACE(ejk::dtype_name(dtype));
    const ejk::Tensor tensor(dtype, {5, 3});
    ejk::detail::RebuiltData data;
    const ejk::Value sketch = ejk::detail::sketch_array(tensor.any(), ejk::Role::input);
    const auto made = data.array(sketch);
    EXPECT_EQ(made.dtype, dtype);
    EXPECT_EQ(made.shape, (std::vector<int64_t>{5, 3}));
    const ejk::Value again = ejk::detail::sketch_array(made.any(), ejk::Role::input);
    if (const ejk::Value* max = sketch.find("data")->find("max")) {
      EXPECT_EQ(again.find("data")->find("max")->as_double(), max->as_double());
    }
  }
}

// ---- integers -----------------------------------------------------------------------------------

class RecordedIntegers : public Record {
 protected:
  template <class T>
  ejk::RecordedCall recorded(const ejk::StridedView<const T, 1>& numbers) {
    auto recording = open();
    recording_into(recording)(Echo<T>{}, numbers);
    recording->flush();
    return calls_of(std::string(Echo<T>::op_id) + "@v1").begin()->second;
  }
  template <class T>
  std::vector<T> made_again(const ejk::RecordedCall& call) {
    using Config = typename Echo<T>::Config;
    const auto made = ejk::rebuild_call(call);
    const std::vector<ejk::Tensor> out = made->run(ejk::make_config(Config{}));
    const ejk::AnyView view = out.at(0).any();
    const auto* data = static_cast<const T*>(view.data);
    return {data, data + view.size()};
  }
  template <class T>
  std::vector<T> made_again(const std::vector<T>& numbers) {
    return made_again<T>(recorded<T>({numbers.data(), {std::ssize(numbers)}, {1}}));
  }
  static std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths, int64_t first = 0) {
    std::vector<int64_t> out{first};
    for (const int64_t length : lengths) out.push_back(out.back() + length);
    return out;
  }
  static std::vector<int64_t> lengths_of(const std::vector<int64_t>& offsets) {
    std::vector<int64_t> out;
    for (size_t i = 1; i < offsets.size(); ++i) out.push_back(offsets[i] - offsets[i - 1]);
    return out;
  }
  static std::vector<int64_t> sorted(std::vector<int64_t> numbers) {
    std::ranges::sort(numbers);
    return numbers;
  }
};

TEST_F(RecordedIntegers, OffsetsKeepTheLengthsBetweenThem) {
  std::vector<int64_t> lengths(1000, 3);
  for (size_t i = 0; i < 10; ++i) lengths[i] = 0;
  lengths[500] = 100'000;  // one row has nearly everything
  const auto made = made_again(offsets_of(lengths, 5));
  EXPECT_EQ(made.front(), 5);
  EXPECT_EQ(sorted(lengths_of(made)), sorted(lengths));
}

TEST_F(RecordedIntegers, TheDistributionOfManyDifferentLengthsIsKept) {
  std::vector<int64_t> lengths;
  for (int64_t i = 1; i <= 2000; ++i) lengths.push_back(1'000'000 / (i * i));  // few are long
  const auto offsets = offsets_of(lengths), made = made_again(offsets);
  EXPECT_EQ(made.front(), offsets.front());
  EXPECT_EQ(made.back(), offsets.back());
  const auto before = sorted(lengths), after = sorted(lengths_of(made));
  EXPECT_EQ(after.front(), before.front());
  EXPECT_EQ(after.back(), before.back());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_GE(4 * after[i], 3 * before[i]) << i;
    EXPECT_LE(3 * after[i], 4 * before[i]) << i;
  }
}

TEST_F(RecordedIntegers, LengthsKeepTheirDistributionAndTheirSum) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 500; ++i) lengths.push_back(i % 100 == 7 ? 4000 + 7 * i : 10 + i % 90);
  const auto made = made_again(lengths);
  EXPECT_EQ(std::reduce(made.begin(), made.end()), std::reduce(lengths.begin(), lengths.end()));
  EXPECT_EQ(sorted(made).front(), sorted(lengths).front());
  EXPECT_EQ(sorted(made).back(), sorted(lengths).back());
  EXPECT_EQ(std::ranges::count_if(made, [](int64_t n) { return n >= 4000; }), 5);
}

TEST_F(RecordedIntegers, FewDifferentOnesAreKeptWithTheirCounts) {
  std::vector<int64_t> blocks;
  for (size_t i = 0; i < 300; ++i) blocks.push_back(i % 3 == 0 ? 128 : i % 5 == 0 ? -1 : 64);
  EXPECT_EQ(sorted(made_again(blocks)), sorted(blocks));
}

TEST_F(RecordedIntegers, IndicesAreSpreadAsTheyWere) {
  std::vector<int64_t> columns;
  for (int64_t i = 0; i < 20'000; ++i) columns.push_back(i * 7919 % 20'011);
  const auto made = made_again(columns);
  EXPECT_GT(std::set<int64_t>(made.begin(), made.end()).size(), 10'000u);
  EXPECT_NE(made, sorted(made));
  EXPECT_GE(sorted(made).front(), 0);
  EXPECT_LT(sorted(made).back(), 20'011);
}

TEST_F(RecordedIntegers, TheWidestRangesStayWithinTheirType) {
  const std::vector<int8_t> narrow{-128, -128, -128, 127};  // a step of 255
  EXPECT_EQ(made_again(narrow).front(), -128);
  EXPECT_EQ(made_again(narrow).back(), 127);
  constexpr int64_t low = std::numeric_limits<int64_t>::min(),
                    high = std::numeric_limits<int64_t>::max();
  const auto rising = made_again(std::vector<int64_t>{low, 0, high});
  EXPECT_EQ(rising.front(), low);
  EXPECT_EQ(rising.back(), high);
  EXPECT_EQ(made_again(std::vector<int64_t>{high, 0, low}).size(), 3u);
}

TEST_F(RecordedIntegers, StridedOnesAreLikeTheRecordedOnesToo) {
  std::vector<int64_t> lengths(50, 1);
  lengths[20] = 900;
  std::vector<int64_t> apart(51 * 3, -7);
  const auto offsets = offsets_of(lengths);
  for (size_t i = 0; i < offsets.size(); ++i) apart[3 * i] = offsets[i];
  const auto made = made_again<int64_t>(recorded<int64_t>({apart.data(), {51}, {3}}));
  EXPECT_EQ(made.front(), 0);
  EXPECT_EQ(sorted(lengths_of(made)), sorted(lengths));
}

TEST_F(RecordedIntegers, RecordsWithoutAnyOfThatAreMadeWithinTheirBounds) {
  const std::vector<int64_t> three{0, 4, 90};
  ejk::RecordedCall call = recorded<int64_t>({three.data(), {3}, {1}});
  const auto with_data = [&](const std::string& data) {
    call.arguments.as_array()[0]["data"] = ejk::parse_json(data);
    return made_again<int64_t>(call);
  };
  const auto in_order = with_data(R"({"min":2,"max":9,"order":"not falling","seed":3})");
  EXPECT_EQ(in_order.front(), 2);
  EXPECT_EQ(in_order.back(), 9);
  EXPECT_TRUE(std::ranges::is_sorted(in_order));
  for (const int64_t n : with_data(R"({"min":2,"max":9,"seed":3})")) {
    EXPECT_GE(n, 2);
    EXPECT_LE(n, 9);
  }
}

TEST_F(RecordedIntegers, GroupsThatDoNotFitAreRefused) {
  const std::vector<int64_t> three{0, 4, 90};
  ejk::RecordedCall call = recorded<int64_t>({three.data(), {3}, {1}});
  const auto why = [&](const std::string& data) -> std::string {
    call.arguments.as_array()[0]["data"] = ejk::parse_json(data);
    try {
      ejk::rebuild_call(call);
      return "";
    } catch (const ejk::Error& error) {
      return error.what();
    }
  };
  const std::string steps = R"({"min":0,"max":90,"order":"rising","seed":1,"steps":)";
  EXPECT_EQ(why(steps + "[[4,4,1,4],[86,86,1,86]]}"), "");
  for (const char* bad :
       {"[[4,4,1,4]]}", "[[4,4,1,4],[87,87,1,87]]}", "[[4,4,1,4],[86,86,1,85]]}", "[[0,90,2,90]]}",
        "[[4,86,2,91]]}", "[[86,4,2,90]]}", "[[4,4,0,0],[4,86,2,90]]}", "[[-4,94,2,90]]}", "[[1]]}",
        "[1]}", "7}", "[[4,86,4611686018427387904,90]]}", "[[4,86,2,1e3]]}"})
    EXPECT_THAT(why(steps + bad), HasSubstr("groups")) << bad;
  const std::string values = R"({"min":0,"max":90,"seed":1,"values":)";
  EXPECT_EQ(why(values + "[[0,90,3,94]]}"), "");
  EXPECT_THAT(why(values + "[[0,91,3,95]]}"), HasSubstr("groups"));
  EXPECT_THAT(why(values + "[[0,90,4,94]]}"), HasSubstr("groups"));
}

TEST_F(Record, ACallThatCannotBeMadeAgainSaysWhy) {
  auto recording = open();
  const ejk::Executor executor = recording_into(recording);
  executor(fakes::Show{}, x, y);
  recording->flush();
  const ejk::RecordedCall good = calls_of("show@v3").begin()->second;
  EXPECT_NO_THROW(ejk::rebuild_call(good));

  auto why = [](const ejk::RecordedCall& call) -> std::string {
    try {
      ejk::rebuild_call(call);
      return "";
    } catch (const ejk::Error& error) {
      return error.what();
    }
  };
  auto with = [&](const std::string& arguments) {
    ejk::RecordedCall call = good;
    call.arguments = ejk::parse_json(arguments);
    return call;
  };
  ejk::RecordedCall unknown = good;
  unknown.id.op = "nobody@v1";
  EXPECT_THAT(why(unknown), HasSubstr("[nobody@v1]"));
  EXPECT_THAT(why(unknown), HasSubstr("no kernel of that op and version is registered"));
  EXPECT_THAT(why(unknown), HasSubstr("show@v3"));
  const std::string out = R"(,{"dtype":"float32","shape":[2]}])";
  EXPECT_THAT(why(with(R"([{"dtype":"float32","shape":[9]})" + out)), HasSubstr("another one"));
  EXPECT_THAT(why(with("[]")), HasSubstr("0 arguments are given and run takes"));
  EXPECT_THAT(why(with("null")), HasSubstr("cannot be made again"));
  EXPECT_THAT(why(with("[1,2]")), HasSubstr("no dtype"));
  EXPECT_THAT(why(with(R"([{"dtype":"float32","shape":[4611686018427387904]})" + out)),
              HasSubstr("do not fit"));
  EXPECT_THAT(why(with(R"([{"dtype":"float32","shape":[-1]})" + out)), HasSubstr("negative"));
  EXPECT_THAT(why(with(R"([{"dtype":"float32","shape":["a"]})" + out)),
              HasSubstr("not an integer"));
  EXPECT_THAT(why(with(R"([{"dtype":"float33","shape":[8]})" + out)), HasSubstr("float33"));
  EXPECT_THAT(why(with(R"([{"dtype":"int32","shape":[8]})" + out)), HasSubstr("element type"));
  EXPECT_THAT(
      why(with(R"([{"dtype":"float32","shape":[8],"strides":[4611686018427387904]})" + out)),
      HasSubstr("too far"));
  EXPECT_THAT(why(with(R"([{"dtype":"float32","shape":[8],"strides":[1,1]})" + out)),
              HasSubstr("number of strides"));
}

TEST_F(Record, ByHandWithoutACall) {
  auto recording = open();
  ejk::record_invocation(*recording, fakes::Show{}, x, y);
  recording->flush();
  EXPECT_EQ(calls_of("show@v3").begin()->second.calls, 1u);
  EXPECT_EQ(y, (std::vector<float>{0, 0}));
  std::map<std::string, std::string> why_not;
  const auto made =
      ejk::get_invocations(recording->folder(), ejk::cpu_device().fingerprint, &why_not);
  EXPECT_THAT(made.at("show@v3"), SizeIs(1));
  EXPECT_THAT(why_not, IsEmpty());
}

}  // namespace
