// SPDX-License-Identifier: Apache-2.0
#include <ejk/offline.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "base/sha256.h"
#include "fakes.h"

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

namespace {

EJK_REGISTER(fakes::Show);

// Even and odd blocks give other results.
struct Parity : fakes::Show {
  static constexpr std::string_view op_id = "parity";
  int numerics(const Config& config) const { return config.block % 2; }
};
EJK_REGISTER(Parity);

// Not registered.
struct Hidden : fakes::Show {
  static constexpr std::string_view op_id = "hidden";
};

class Offline : public testing::Test {
 protected:
  Offline() { recorder = std::make_shared<ejk::Recording>(records); }

  // A call as a program makes it, and its label.
  template <class K = fakes::Show>
  std::string call(size_t size, int times = 1) {
    ejk::SelectorOptions options;
    options.policy = ejk::AutotunePolicy{.allow_autotune = false};
    options.recording = recorder;
    const ejk::Executor program(options);
    const std::vector<float> x(size);
    std::vector<float> y{0};
    for (int i = 0; i < times; ++i) program(K{}, x, y);
    recorder->flush();
    return program.label(K{}, x, y);
  }
  static std::string lowered(const std::vector<std::string>& labels) {
    std::string text = "HloModule m\n";
    for (const std::string& l : labels)
      text += "a = f32[] add(b, c), frontend_attributes={ejkernel_label=\"" + l +
              "\"}, metadata={op_name=\"jit(f)/" + ejk::scope_label(l) + "/add\"}\n";
    return text;
  }
  ejk::ConfigSelectorChain chain(bool persist = true) {
    ejk::SelectorOptions options = setup.options(folder.path() + "/store");
    options.persist_autotune = persist;
    return ejk::ConfigSelectorChain(std::move(options));
  }
  // Of the first record.
  ejk::EntryId recorded_id() const {
    const ejk::RecordedCalls recorded = ejk::read_recorded(records);
    return recorded.begin()->second.begin()->second.begin()->second.id;
  }
  // In the place of the only one.
  void replace_record(const ejk::RecordedCall& record) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(records)) {
      if (file.path().extension() != ".json") continue;
      const auto device = file.path().parent_path();
      std::filesystem::remove(file.path());
      std::ofstream(device / (ejk::base::sha256_hex(record.id.spec, 32) + ".json"))
          << to_json(record_to_document(record));
      return;
    }
  }
  // All recorded calls.
  std::vector<ejk::RecordedCall> recorded_calls() const {
    std::vector<ejk::RecordedCall> out;
    for (const auto& [device, ops] : ejk::read_recorded(records))
      for (const auto& [op, keys] : ops)
        for (const auto& [key, recorded] : keys) out.push_back(recorded);
    return out;
  }
  // What a program runs with that shares nothing but the store.
  float runs_with(size_t size) {
    ejk::SelectorOptions options;
    options.policy = ejk::AutotunePolicy{.allow_autotune = false};
    options.persistent = std::make_shared<ejk::PersistentCache>(folder.path() + "/store");
    const std::vector<float> x(size);
    std::vector<float> y{0};
    const ejk::Executor executor(options);
    executor(fakes::Show{}, x, y);
    return y[0];
  }

  fakes::TempDir folder;
  const std::string records = folder.path() + "/recorded";
  std::shared_ptr<ejk::Recording> recorder;
  fakes::Setup setup;
  ejk::OfflineOptions here{.folder = records};
};

TEST_F(Offline, ACallWhoseTuningThrowsWhatIsNoExceptionIsLeftOut) {
  call(1), call(2);
  here.tune_call = [](const ejk::RecordedCall& call, double) {
    if (call.arguments.as_array()[0].find("shape")->as_array()[0] == ejk::Value(1))
      throw "a text and no more";
    ejk::Entry entry;
    entry.id = call.id;
    return entry;
  };
  auto selector = chain();
  const auto result = autotune_recorded(selector, here);
  EXPECT_THAT(result.entries, SizeIs(1));
  ASSERT_THAT(result.skipped, SizeIs(1));
  EXPECT_EQ(result.skipped[0].why, "a text and no more");
}

TEST_F(Offline, EveryLabelOfALoweredComputationIsTunedOnce) {
  const std::string a = call(4), b = call(5);
  auto selector = chain();
  const auto result = autotune_lowered(selector, lowered({a, b, a, a, b, a, a}), here);
  EXPECT_EQ(setup.tuner->asked, 2);
  ASSERT_THAT(result.entries, SizeIs(2));
  EXPECT_EQ(result.device, ejk::cpu_device().fingerprint);
  EXPECT_EQ(ejk::make_label(result.entries[0].id.op, result.entries[0].id.key), a);
  EXPECT_EQ(result.entries[0].evidence.data, "recorded sketch");
  EXPECT_THAT(result.skipped, IsEmpty());
  EXPECT_EQ(result.note, "");
  EXPECT_EQ(runs_with(4), 2.f) << "the store has it";
}

TEST_F(Offline, TheResultIsAScope) {
  auto selector = chain(false);
  const auto result = autotune_lowered(selector, lowered({call(4)}), here);
  ASSERT_THAT(result.entries, SizeIs(1));
  EXPECT_EQ(runs_with(4), 7.f) << "persist_autotune is off: nothing is stored";
  {
    const auto scope = result.apply();
    EXPECT_EQ(runs_with(4), 2.f);
  }
  EXPECT_EQ(runs_with(4), 7.f);
}

TEST_F(Offline, ATunedCallIsLeftUnlessRetuneAsksForIt) {
  const std::string text = lowered({call(4)});
  auto selector = chain();
  autotune_lowered(selector, text, here);
  auto result = autotune_lowered(selector, text, here);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_THAT(result.entries, SizeIs(1));
  EXPECT_EQ(result.already, 1u);
  EXPECT_EQ(result.note, "nothing was tuned: 1 call is tuned already");
  EXPECT_THAT(result.text(), HasSubstr("tuned before"));
  here.retune = true;
  result = autotune_lowered(selector, text, here);
  EXPECT_EQ(setup.tuner->asked, 2);
  EXPECT_EQ(result.already, 0u);
}

TEST_F(Offline, ACallTunedWithoutItIsTunedAgainUnderNumericsSame) {
  call<Parity>(4);
  auto any = chain();
  EXPECT_EQ(autotune_recorded(any, here).entries.at(0).numerics, ejk::Value(0));
  ejk::SelectorOptions options = setup.options(folder.path() + "/store");
  options.policy->numerics = ejk::Numerics::same;
  ejk::ConfigSelectorChain same(std::move(options));
  const auto result = autotune_recorded(same, here);
  EXPECT_EQ(setup.tuner->asked, 2);
  EXPECT_EQ(result.already, 0U);
  ASSERT_THAT(result.entries, SizeIs(1));
  EXPECT_EQ(result.entries[0].numerics, ejk::Value(1)) << "the heuristic's";
  EXPECT_EQ(*result.entries[0].config.find("block"), ejk::Value(3));
}

TEST_F(Offline, ACallTunedUnderNumericsSameIsNotTunedAgain) {
  call<Parity>(4);
  const auto tune = [&](bool retune) {
    ejk::SelectorOptions options = setup.options(folder.path() + "/store");
    options.policy->numerics = ejk::Numerics::same;
    ejk::ConfigSelectorChain same(std::move(options));
    ejk::OfflineOptions how = here;
    how.retune = retune;
    return autotune_recorded(same, how);
  };
  ejk::Entry stored = tune(false).entries.at(0);
  stored.evidence.time = "2020-01-01T00:00:00Z";
  ejk::PersistentCache(folder.path() + "/store").put(stored, ejk::IfPresent::replace);
  EXPECT_EQ(tune(false).already, 1U);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(tune(true).already, 0U);
  EXPECT_EQ(setup.tuner->asked, 2);
}

// What an entry and a record were kept under before outputs counted.
ejk::EntryId without_outputs(ejk::EntryId id) {
  id.spec = ejk::spec_without_outputs(id.spec);
  id.key = ejk::short_hash(std::string_view(id.spec));
  return id;
}

TEST_F(Offline, ACallTunedForOtherOutputsIsTunedOnce) {
  const std::string text = lowered({call(4)});
  ejk::Entry old;
  old.id = without_outputs(recorded_id());
  old.config = ejk::Value::object({{"block", 3}});
  old.evidence.complete = true;
  ejk::PersistentCache(folder.path() + "/store").put(old);
  auto selector = chain();
  EXPECT_EQ(autotune_lowered(selector, text, here).already, 0u);
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(autotune_recorded(selector, here).already, 1u);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(Offline, APlanHoldsWhatWasTunedForOtherOutputs) {
  call(4);
  ejk::Entry old;
  old.id = without_outputs(recorded_id());
  old.config = ejk::Value::object({{"block", 3}});
  old.evidence.complete = true;
  ejk::PersistentCache(folder.path() + "/store").put(old);
  auto selector = chain();
  EXPECT_EQ(autotune_recorded(selector, here).already, 0u);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(Offline, ARecordFromBeforeOutputsCountedIsTunedOnce) {
  call(4);
  ejk::RecordedCalls recorded = ejk::read_recorded(records);
  ejk::RecordedCall& record = recorded.begin()->second.begin()->second.begin()->second;
  record.id = without_outputs(record.id);
  replace_record(record);
  auto selector = chain();
  EXPECT_EQ(autotune_recorded(selector, here).already, 0u);
  EXPECT_EQ(autotune_recorded(selector, here).already, 1u);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST_F(Offline, LabelsThatCannotBeTunedSayWhy) {
  auto selector = chain();
  EXPECT_THAT(
      autotune_lowered(selector, lowered({"ejkernel_ops#show@v3:0123456789abcdef"}), here).note,
      HasSubstr("nothing is recorded in " + records));
  const std::string good = call(4), hidden = call<Hidden>(4);
  const std::string text = lowered({good, "ejkernel_ops#show@v3:0123456789abcdef",
                                    "ejkernel_ops#other@v1:0123456789abcdef", hidden}) +
                           "op_name=\"jit(f)/ejkernel_ops#matmul\"\n";
  const auto result = autotune_lowered(selector, text, here);
  EXPECT_THAT(result.entries, SizeIs(1));
  std::vector<std::string> why;
  for (const auto& s : result.skipped) why.push_back(s.op + ": " + s.why);
  EXPECT_THAT(why, ElementsAre(HasSubstr("show@v3: the op is recorded with other arguments only"),
                               HasSubstr("other@v1: it was never recorded"),
                               HasSubstr("matmul: its label is truncated"),
                               HasSubstr("no kernel of that op and version is registered")));
  EXPECT_THAT(result.text(), HasSubstr("[other@v1] 0123456789abcdef: not tuned: "));
}

TEST_F(Offline, NothingIsNeverSilent) {
  auto selector = chain();
  call(4);
  EXPECT_THAT(autotune_lowered(selector, "HloModule m\n", here).note,
              HasSubstr("(HLO text) holds no label"));
  here.ops = {"another"};
  EXPECT_THAT(autotune_lowered(selector, lowered({call(4)}), here).note,
              HasSubstr("none of its labels is of the ops asked for"));
  EXPECT_THAT(autotune_recorded(selector, here).note, HasSubstr("none of the 1 recorded calls"));
  here.folder = folder.path() + "/nowhere";
  EXPECT_THAT(autotune_recorded(selector, here).note, HasSubstr("nothing is recorded for"));
  setup.tuner->outcome = ejk::Outcome::failed;
  here = {.folder = records};
  const auto failed = autotune_recorded(selector, here);
  EXPECT_THAT(failed.skipped, SizeIs(1));
  EXPECT_THAT(failed.note, HasSubstr("because the test says so"));
}

TEST_F(Offline, RecordedCallsAreTunedWithinTheBudget) {
  for (size_t n = 1; n <= 4; ++n) call(n);
  here.budget_seconds = 3600;
  setup.tuner->before = [&](const ejk::TuneTask& task) {
    EXPECT_LE(task.budget.seconds, 3600);
    here.budget_seconds = 1e-9;  // as if this tuning had taken the rest
  };
  auto selector = chain();
  const auto result = autotune_recorded(selector, here);
  EXPECT_THAT(result.entries, SizeIs(1));
  ASSERT_THAT(result.skipped, SizeIs(3));
  EXPECT_THAT(result.skipped[0].why, HasSubstr("the budget was spent"));
}

TEST_F(Offline, ProgressTellsWhichCallIsNext) {
  call(1), call(2);
  std::vector<std::string> told;
  here.on_progress = [&](const ejk::TuneProgress& p) { told.emplace_back(p.message); };
  auto selector = chain();
  autotune_recorded(selector, here);
  EXPECT_THAT(told, ElementsAre("1 of 2", "2 of 2"));
}

TEST_F(Offline, RecordsOfAnotherDeviceAreNotTunedHere) {
  call(4);
  here.device = "cpu|Another|0123456789abcdef";
  auto selector = chain();
  EXPECT_THAT(autotune_recorded(selector, here).note,
              HasSubstr("nothing is recorded for cpu|Another"));
}

// The same result with more or less work.
struct Work {
  static constexpr std::string_view op_id = "work", version = "1";
  struct Config {
    int times = 1;
  };
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    for (int t = 0; t < c.times; ++t)
      for (size_t i = 0; i < x.size(); ++i) {
        (*y)[i] = 2 * x[i];
        asm volatile("" ::: "memory");
      }
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {50}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{50}, {1}, {20}}; }
};
EJK_REGISTER(Work);

TEST_F(Offline, ARealTunerFindsTheFastestConfigFromASketch) {
  std::vector<float> y(1000);
  ejk::record_invocation(*recorder, Work{}, std::vector<float>(1000, 1.f), y);
  recorder->flush();
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.budget_seconds = 5};
  ejk::ConfigSelectorChain selector(options);
  const auto result = autotune_recorded(selector, here);
  ASSERT_THAT(result.entries, SizeIs(1)) << result.text();
  EXPECT_EQ(stable_json(result.entries[0].config), R"({"times":1})");
}

// ---- plans --------------------------------------------------------------------------------------

ejk::RecordedCall recorded(const std::string& op, int n, uint64_t calls, double seconds_each) {
  ejk::RecordedCall call;
  const std::string spec = R"({"n":)" + std::to_string(n) + "}";
  call.id = {ejk::cpu_device().fingerprint, op, ejk::short_hash(std::string_view(spec)), spec};
  call.calls = calls, call.timed_calls = 1, call.timed_seconds = seconds_each;
  return call;
}
ejk::Entry tuned(const ejk::RecordedCall& call, double speedup, bool complete = true) {
  ejk::Entry entry;
  entry.id = call.id;
  entry.config = ejk::Value::object();
  entry.evidence.speedup = speedup;
  entry.evidence.complete = complete;
  return entry;
}
std::vector<std::string> order(const std::vector<ejk::PlannedCall>& plan) {
  std::vector<std::string> out;
  for (const auto& p : plan) out.push_back(p.call.id.op + p.call.id.spec);
  return out;
}

TEST(Plan, MostTimeFirstIfNothingIsKnown) {
  EXPECT_THAT(order(ejk::plan_tuning(
                  {recorded("a", 1, 10, 1), recorded("a", 2, 1, 100), recorded("b", 3, 1000, 0.05)},
                  nullptr)),
              ElementsAre(R"(a{"n":2})", R"(b{"n":3})", R"(a{"n":1})"));
}

TEST(Plan, GainsOfOtherCallsOfTheOpCount) {
  const fakes::TempDir folder;
  ejk::PersistentCache store(folder.path());
  for (int i = 10; i < 40; ++i) {
    store.put(tuned(recorded("gains", i, 1, 1), 4));  // three quarters
    store.put(tuned(recorded("hardly", i, 1, 1), 1.01));
  }
  const auto plan = ejk::plan_tuning(
      {recorded("hardly", 1, 1, 100), recorded("gains", 2, 1, 10), recorded("new", 3, 1, 10)},
      &store);
  EXPECT_THAT(order(plan), ElementsAre(R"(gains{"n":2})", R"(new{"n":3})", R"(hardly{"n":1})"));
  EXPECT_NEAR(plan[0].expected_gain, 0.75, 0.05);
  EXPECT_EQ(plan[0].why, "30 calls of the op gained 75 % on average");
  EXPECT_EQ(plan[1].why, "60 calls of other ops gained 38 % on average");
}

TEST(Plan, ATuningWithoutGainDoesNotHideWhereTheTimeGoes) {
  const fakes::TempDir folder;
  ejk::PersistentCache store(folder.path());
  store.put(tuned(recorded("a", 9, 1, 1), 0.441));
  const auto plan = ejk::plan_tuning(
      {recorded("a", 1, 1, 1), recorded("a", 2, 1, 50), recorded("b", 3, 1, 2)}, &store);
  EXPECT_THAT(order(plan), ElementsAre(R"(a{"n":2})", R"(b{"n":3})", R"(a{"n":1})"));
  EXPECT_GT(plan[2].expected_gain, 0.01);
  // It tells more of its own op than of another one.
  EXPECT_LT(plan[0].expected_gain, plan[1].expected_gain);
  EXPECT_LT(plan[1].expected_gain,
            ejk::plan_tuning({recorded("b", 3, 1, 2)}, nullptr)[0].expected_gain);
  EXPECT_EQ(plan[0].why, "1 call of the op gained 0 %");
}

TEST(Plan, TunedCallsAreLeftOutAndUnfinishedOnesComeLast) {
  const fakes::TempDir folder;
  ejk::PersistentCache store(folder.path());
  store.put(tuned(recorded("a", 1, 1, 1), 2));
  store.put(tuned(recorded("a", 2, 1, 1), 2, false));
  EXPECT_THAT(
      order(ejk::plan_tuning(
          {recorded("a", 1, 1, 1), recorded("a", 2, 1, 1), recorded("a", 3, 1, 1)}, &store)),
      ElementsAre(R"(a{"n":3})", R"(a{"n":2})"));
}

// Hands on to a directory and counts what is read.
class Counted final : public fakes::StoreBefore {
 public:
  using StoreBefore::StoreBefore;
  int gets = 0, hits = 0, visits = 0;

  std::optional<ejk::Entry> get(const ejk::EntryId& id, ejk::Detail detail,
                                const ejk::Value* environment) override {
    auto found = StoreBefore::get(id, detail, environment);
    ++gets, hits += found.has_value();
    return found;
  }
  void for_each(std::string_view op, const std::function<bool(const ejk::Entry&)>& visit,
                ejk::Detail detail) override {
    EXPECT_EQ(detail, ejk::Detail::choice);
    StoreBefore::for_each(
        op, [&](const ejk::Entry& entry) { return ++visits, visit(entry); }, detail);
  }
};

TEST_F(Offline, APlanReadsEachChoiceOnce) {
  for (size_t size = 1; size <= 6; ++size) call(size);
  auto tunes = chain();
  autotune_recorded(tunes, {.folder = records});
  call(7), call(8);
  const auto store = std::make_shared<Counted>(folder.path() + "/store");
  const auto cache = fakes::cache_of(store);
  EXPECT_THAT(plan_tuning(recorded_calls(), cache.get()), SizeIs(2));
  EXPECT_EQ(store->visits, 6);
  EXPECT_EQ(store->gets, 0);

  ejk::SelectorOptions options = setup.options();
  options.persistent = cache;
  ejk::ConfigSelectorChain later(std::move(options));
  const auto result = autotune_recorded(later, {.folder = records});
  EXPECT_THAT(result.entries, SizeIs(8));
  EXPECT_EQ(result.already, 6u);
  EXPECT_EQ(store->visits, 12);
  EXPECT_EQ(store->hits, 0) << "nothing is read again but to see that two are not there";
}

}  // namespace
