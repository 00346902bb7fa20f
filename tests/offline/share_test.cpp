// SPDX-License-Identifier: Apache-2.0
// Several processes tune the same recorded calls.
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "offline/shard.h"
#include "postgres_server.h"
#include "store/shared.h"

namespace {

using ejk::Shard;
using ejk::detail::order_in_plan;
using ejk::detail::read_shard;
using ejk::detail::shard_of_launch;
using ejk::testing::PostgresServer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

EJK_REGISTER(fakes::Show);

// ---- who takes which

TEST(Shards, ProcessesOfAKnownNumberFollowThePlanTogether) {
  EXPECT_THAT(order_in_plan(7, {0, 3}), ElementsAre(0, 3, 6, 1, 4, 2, 5));
  EXPECT_THAT(order_in_plan(7, {1, 3}), ElementsAre(1, 4, 2, 5, 0, 3, 6));
  EXPECT_THAT(order_in_plan(7, {2, 3}), ElementsAre(2, 5, 0, 3, 6, 1, 4));
  EXPECT_THAT(order_in_plan(3, {0, 1}), ElementsAre(0, 1, 2));
}

TEST(Shards, AProcessThatKnowsItsIndexAloneGoesRoundFromThere) {
  EXPECT_THAT(order_in_plan(4, {0, 0}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order_in_plan(4, {3, 0}), ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(order_in_plan(4, {9, 0}), ElementsAre(1, 2, 3, 0));
}

TEST(Shards, EveryProcessComesToEveryCallOnce) {
  for (size_t calls = 0; calls < 12; ++calls)
    for (size_t count = 0; count < 15; ++count)
      for (size_t index = 0; index < std::max<size_t>(count, 14); ++index) {
        auto order = order_in_plan(calls, {index, count});
        std::vector<size_t> all(calls);
        std::iota(all.begin(), all.end(), size_t{0});
        std::ranges::sort(order);
        ASSERT_EQ(order, all) << index << "/" << count;
      }
}

TEST(Shards, AreReadFromTheCommandLine) {
  const auto shard = read_shard("3/8");
  ASSERT_TRUE(shard);
  EXPECT_EQ(shard->index, 3u);
  EXPECT_EQ(shard->count, 8u);
  for (const char* bad : {"", "3", "/", "3/", "/8", "8/8", "9/8", "0/0", "-1/8", "1/-8", "1/8/2",
                          " 1/8", "1/8 ", "+1/8", "1.0/8", "a/b", "99999999999999999999/1"})
    EXPECT_FALSE(read_shard(bad)) << bad;
}

class Launch : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name :
         {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN",
          "SLURM_ARRAY_TASK_STEP", "JOB_COMPLETION_INDEX"})
      ::unsetenv(name);
  }
  // "INDEX/COUNT", or "" if there is none.
  static std::string shard(const std::vector<std::pair<const char*, const char*>>& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    const auto found = shard_of_launch();
    return found ? std::to_string(found->index) + "/" + std::to_string(found->count) : "";
  }
};

TEST_F(Launch, SaysWhichPartAJobIs) {
  EXPECT_EQ(shard({}), "");
  EXPECT_EQ(shard({{"SLURM_ARRAY_TASK_ID", "5"}, {"SLURM_ARRAY_TASK_COUNT", "8"}}), "5/8");
  EXPECT_EQ(shard({{"SLURM_ARRAY_TASK_ID", "5"}}), "5/0");
  EXPECT_EQ(shard({{"SLURM_ARRAY_TASK_ID", "18"},
                   {"SLURM_ARRAY_TASK_COUNT", "4"},
                   {"SLURM_ARRAY_TASK_MIN", "10"},
                   {"SLURM_ARRAY_TASK_STEP", "4"}}),
            "2/4");
  EXPECT_EQ(shard({{"SLURM_ARRAY_TASK_ID", "9"}, {"SLURM_ARRAY_TASK_COUNT", "3"}}), "0/3")
      << "--array=1,5,9";
  EXPECT_EQ(shard({{"JOB_COMPLETION_INDEX", "7"}}), "7/0");
}

TEST_F(Launch, AVariableThatIsNotANumberIsIgnored) {
  EXPECT_EQ(shard({{"SLURM_ARRAY_TASK_ID", "x"}, {"SLURM_ARRAY_TASK_COUNT", "8"}}), "");
  EXPECT_EQ(shard({{"JOB_COMPLETION_INDEX", ""}}), "");
  EXPECT_EQ(shard({{"SLURM_ARRAY_TASK_ID", "5"},
                   {"SLURM_ARRAY_TASK_COUNT", "-1"},
                   {"SLURM_ARRAY_TASK_MIN", "x"},
                   {"SLURM_ARRAY_TASK_STEP", "0"}}),
            "5/0");
}

TEST(Shards, EveryCallIsInOne) {
  std::vector<size_t> sizes(5);
  for (int n = 0; n < 200; ++n) {
    const ejk::EntryId id = ejk::testing::call_id(n);
    int in = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (ejk::detail::is_in_shard(id, {i, sizes.size()})) ++in, ++sizes[i];
    EXPECT_EQ(in, 1);
  }
  for (const size_t size : sizes) EXPECT_GT(size, 20u) << "of 200 calls in 5 shards";
}

// ---- one process among others

// A directory whose leases others may have.
class Contended : public fakes::StoreBefore {
 public:
  using StoreBefore::StoreBefore;

  // Asked before each lease of a call: whether another process has it.
  std::function<bool(const ejk::EntryId&)> is_held = [](const auto&) { return false; };
  bool can_lock = true;
  int leased = 0;  // asked for
  int refreshed = 0;
  std::mutex mutex;
  std::condition_variable changed;

  std::unique_ptr<ejk::TuningLease> lease(const ejk::EntryId& id, double patience) override {
    EXPECT_EQ(patience, 0);
    if (id.op != "share") ++leased;
    if (!can_lock || (id.op != "share" && is_held(id))) return nullptr;
    struct Lease : ejk::TuningLease {
      explicit Lease(Contended& of) : store(of) {}
      void refresh() override {
        const std::lock_guard lock(store.mutex);
        ++store.refreshed;
        store.changed.notify_all();
      }
      Contended& store;
    };
    return std::make_unique<Lease>(*this);
  }
};

class Sharing : public testing::Test {
 protected:
  void SetUp() override { const ejk::StopOnInterrupt forgets_an_earlier_one; }

  // So many calls, of 1, 2, ... elements; the first one is worth most.
  void record(size_t calls) {
    const auto recorder = std::make_shared<ejk::Recording>(records);
    ejk::SelectorOptions options;
    options.policy = ejk::AutotunePolicy{.allow_autotune = false};
    options.recording = recorder;
    const ejk::Executor program(options);
    std::vector<float> y{0};
    for (size_t size = 1; size <= calls; ++size)
      for (size_t times = size; times <= calls; ++times) {
        const std::vector<float> x(size);
        program(fakes::Show{}, x, y);
      }
  }
  // By the size of its array.
  ejk::EntryId call(size_t size) const {
    const auto recorded = ejk::read_recorded(records);
    for (const auto& [device, ops] : recorded)
      for (const auto& [op, calls] : ops)
        for (const auto& [key, found] : calls)
          if (size_in(found.id) == size) return found.id;
    throw std::runtime_error("it is not recorded");
  }
  static size_t size_in(const ejk::EntryId& id) {
    const size_t at = id.spec.find("\"shape\":[");
    return std::stoul(id.spec.substr(at + 9));
  }
  ejk::Entry entry(size_t size, const std::string& time, bool complete = true) const {
    ejk::Entry out;
    out.id = call(size);
    out.config = ejk::Value::object({{"block", 3}});
    out.environment = ejk::cpu_device().environment;
    out.evidence.complete = complete;
    out.evidence.samples = 5;
    out.evidence.time = time;
    return out;
  }
  ejk::OfflineResult tune() { return tune_with(store); }
  ejk::OfflineResult tune_with(std::shared_ptr<ejk::Store> with) {
    ejk::SelectorOptions options = setup.options();
    options.persistent = fakes::cache_of(std::move(with));
    ejk::ConfigSelectorChain selector(std::move(options));
    setup.tuner->before = [this](const ejk::TuneTask& task) { order.push_back(size_of(task.key)); };
    return autotune_recorded(selector, here);
  }
  size_t size_of(std::string_view key) const {
    for (size_t size = 1;; ++size)
      if (call(size).key == key) return size;
  }

  fakes::TempDir folder;
  const std::string records = folder.path() + "/recorded";
  std::shared_ptr<Contended> store = std::make_shared<Contended>(folder.path() + "/store");
  fakes::Setup setup;
  std::vector<size_t> order;  // sizes, as they were tuned
  ejk::OfflineOptions here = [this] {
    ejk::OfflineOptions out;
    out.folder = records, out.share = true, out.shard = Shard{0, 1};
    return out;
  }();
};

TEST_F(Sharing, EachBeginsAtItsOwnPlace) {
  record(5);
  here.shard = Shard{1, 2};
  const auto result = tune();
  std::set<size_t> own(order.begin(), order.begin() + 2);
  EXPECT_THAT(order, SizeIs(5));
  here.shard = Shard{0, 2};
  std::filesystem::remove_all(folder.path() + "/store");
  order.clear();
  EXPECT_THAT(tune().entries, SizeIs(5));
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(own.contains(order[i])) << "the other's";
  EXPECT_THAT(result.entries, SizeIs(5));
  EXPECT_THAT(result.skipped, IsEmpty());
}

TEST_F(Sharing, CallsThatOthersHoldAreTakenAtTheEnd) {
  record(4);
  const std::string held = call(1).key;
  int looks = 0;
  store->is_held = [&](const ejk::EntryId& id) { return id.key == held && ++looks <= 3; };
  const auto result = tune();
  EXPECT_EQ(setup.tuner->asked, 4);
  EXPECT_EQ(order.back(), 1u) << "its holder died";
  EXPECT_EQ(looks, 4);
  EXPECT_THAT(result.entries, SizeIs(4));
  EXPECT_EQ(result.already, 0u);
}

TEST_F(Sharing, CallsThatOthersStoredMeanwhileAreNotTunedAgain) {
  record(4);
  store->directory.put(entry(4, "2026-01-01T00:00:00Z"));
  int looks = 0;
  store->is_held = [&](const ejk::EntryId& id) {
    if (size_in(id) != 2 || ++looks > 2) return false;
    if (looks == 2) store->directory.put(entry(2, "2026-01-02T00:00:00Z"));
    return true;
  };
  const auto result = tune();
  EXPECT_EQ(setup.tuner->asked, 2);
  ASSERT_THAT(result.entries, SizeIs(4));
  EXPECT_EQ(result.already, 2u);
  EXPECT_EQ(result.elsewhere, 1u);
  EXPECT_EQ(result.entries[2].id.key, call(2).key);
  EXPECT_EQ(result.entries[3].id.key, call(4).key);
  EXPECT_THAT(result.text(), HasSubstr("tuned elsewhere"));
  EXPECT_THAT(result.text(), HasSubstr("tuned before"));
}

TEST_F(Sharing, WhatOthersStoredIsNotLeased) {
  record(12);
  store->is_held = [&](const ejk::EntryId& id) {
    for (size_t size = 1; size <= 12; ++size)
      if (size != size_in(id)) store->directory.put(entry(size, "2026-01-02T00:00:00Z"));
    return false;
  };
  EXPECT_EQ(tune().elsewhere, 11u);
  EXPECT_THAT(order, SizeIs(1));
  EXPECT_EQ(store->leased, 1);
}

TEST_F(Sharing, CallsThatOthersHoldAreNotAllAskedForAgain) {
  record(40);
  bool done = false;
  store->is_held = [&](const ejk::EntryId& id) { return size_in(id) != 1 && !done; };
  std::vector<int> leased;  // until each pause
  here.on_progress = [&](const ejk::TuneProgress& progress) {
    if (progress.message.find("waiting") == progress.message.npos) return;
    leased.push_back(store->leased);
    if (leased.size() < 4) return;
    done = true;
    for (size_t size = 2; size <= 40; ++size)
      store->directory.put(entry(size, "2026-01-02T00:00:00Z"));
  };
  EXPECT_EQ(tune().elsewhere, 39u);
  EXPECT_THAT(leased, ElementsAre(44, 48, 52, 56)) << "each once, then a few";
  EXPECT_EQ(store->leased, 56);
}

TEST_F(Sharing, ATuningThatOthersCutShortIsNotRepeatedByEachInTurn) {
  record(2);
  store->is_held = [&](const ejk::EntryId& id) {
    if (size_in(id) == 2) store->directory.put(entry(2, "2026-01-02T00:00:00Z", false));
    return false;
  };
  const auto result = tune();
  EXPECT_THAT(order, ElementsAre(1));
  EXPECT_EQ(result.elsewhere, 1u);
}

TEST_F(Sharing, ATuningThatWasCutShortBeforeGoesOn) {
  record(2);
  store->directory.put(entry(2, "2026-01-02T00:00:00Z", false));
  EXPECT_EQ(tune().elsewhere, 0u);
  EXPECT_EQ(setup.tuner->asked, 2);
}

TEST_F(Sharing, ACallThatFailedElsewhereIsNotTriedHere) {
  record(2);
  store->is_held = [&](const ejk::EntryId& id) {
    ejk::Entry failed = entry(2, "2026-01-02T00:00:00Z");
    failed.outcome = ejk::Outcome::failed, failed.config = {};
    if (size_in(id) == 2) store->directory.put(failed);
    return false;
  };
  const auto result = tune();
  EXPECT_THAT(order, ElementsAre(1));
  ASSERT_THAT(result.skipped, SizeIs(1));
  EXPECT_THAT(result.skipped[0].why, HasSubstr("another process rejected every candidate"));
}

TEST_F(Sharing, ACallThatFailsIsTriedOnce) {
  record(3);
  int tries = 0;
  here.tune_call = [&](const ejk::RecordedCall& call, double) -> ejk::Entry {
    if (size_in(call.id) != 2) return entry(size_in(call.id), "2026-01-02T00:00:00Z");
    ++tries;
    throw std::runtime_error("it never works");
  };
  const auto result = tune();
  EXPECT_EQ(tries, 1);
  EXPECT_THAT(result.entries, SizeIs(2));
  ASSERT_THAT(result.skipped, SizeIs(1));
  EXPECT_EQ(result.skipped[0].why, "it never works");
}

TEST_F(Sharing, AHolderThatNeverEndsIsNotWaitedForForEver) {
  record(3);
  store->is_held = [&](const ejk::EntryId& id) { return size_in(id) == 1; };
  here.held_seconds = 0.2;
  const auto result = tune();
  EXPECT_THAT(order, SizeIs(3));
  EXPECT_EQ(order.back(), 1u) << "tuned here too, without the lease";
  EXPECT_THAT(result.entries, SizeIs(3));
}

TEST_F(Sharing, InterruptingEndsTheWaitForOthers) {
  record(3);
  const ejk::StopOnInterrupt stop;
  int looks = 0;
  store->is_held = [&](const ejk::EntryId& id) {
    if (size_in(id) == 1 && ++looks == 2) ::raise(SIGINT);
    return size_in(id) == 1;
  };
  const auto result = tune();
  EXPECT_THAT(result.entries, SizeIs(2));
  ASSERT_THAT(result.skipped, SizeIs(1));
  EXPECT_EQ(result.skipped[0].key, call(1).key);
  EXPECT_EQ(result.skipped[0].why, "it was stopped before its turn");
}

TEST_F(Sharing, ABudgetEndsTheWaitForOthers) {
  record(2);
  store->is_held = [&](const ejk::EntryId& id) { return size_in(id) == 1; };
  here.budget_seconds = 0.5;
  here.tune_call = [&](const ejk::RecordedCall& call, double) {
    return entry(size_in(call.id), "2026-01-02T00:00:00Z");
  };
  const auto result = tune();
  ASSERT_GE(result.skipped.size(), 1u);
  EXPECT_THAT(result.skipped.back().why, HasSubstr("the budget was spent"));
}

TEST_F(Sharing, ALeaseIsRefreshedWhileAnotherProcessTunes) {
  record(1);
  here.tune_call = [&](const ejk::RecordedCall& call, double) {
    std::unique_lock lock(store->mutex);
    store->changed.wait(lock, [&] { return store->refreshed >= 3; });
    return entry(size_in(call.id), "2026-01-02T00:00:00Z");
  };
  EXPECT_THAT(tune().entries, SizeIs(1));
}

TEST_F(Sharing, NeedsAStoreThatCanBeLocked) {
  record(1);
  store->can_lock = false;
  try {
    tune();
    FAIL();
  } catch (const ejk::Error& error) {
    EXPECT_EQ(error.kind(), ejk::ErrorKind::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("cannot be locked"));
    EXPECT_THAT(error.what(), HasSubstr("merge"));
  }
  ejk::ConfigSelectorChain without(setup.options());
  EXPECT_THROW(autotune_recorded(without, here), ejk::Error);
}

TEST_F(Sharing, OptionsThatMakeNoSenseAreRefused) {
  record(1);
  here.retune = true;
  EXPECT_THROW(tune(), ejk::Error);
  here.retune = here.share = false;
  for (const Shard bad : {Shard{2, 2}, Shard{0, 0}}) {
    here.shard = bad;
    EXPECT_THROW(tune(), ejk::Error);
  }
}

TEST_F(Sharing, ShardsWithoutSharingAreDisjoint) {
  record(9);
  here.share = false;
  std::vector<size_t> all;
  for (size_t i = 0; i < 3; ++i) {
    here.shard = Shard{i, 3};
    order.clear();
    std::filesystem::remove_all(folder.path() + "/store");
    tune();
    all.insert(all.end(), order.begin(), order.end());
  }
  std::ranges::sort(all);
  EXPECT_THAT(all, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_F(Sharing, AShardWithoutCallsSaysSo) {
  record(1);
  here.share = false;
  const size_t own = ejk::detail::is_in_shard(call(1), {0, 2}) ? 0 : 1;
  here.shard = Shard{1 - own, 2};
  EXPECT_THAT(tune().note, HasSubstr("none of the 1 recorded calls belongs to shard"));
  EXPECT_THAT(order, IsEmpty());
}

// ---- many at once

// Tunes all calls with so many processes, each with the store that `open` gives it, and counts how
// often each call was.
std::map<std::string, int> tune_together(
    size_t processes, const std::string& records, bool with_numbers,
    const std::function<std::shared_ptr<ejk::Store>(size_t)>& open) {
  std::mutex mutex;
  std::map<std::string, int> tuned;
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < processes; ++i)
    threads.emplace_back([&, i] {
      fakes::Setup setup;
      ejk::SelectorOptions options = setup.options();
      options.persistent = fakes::cache_of(open(i));
      setup.tuner->before = [&](const ejk::TuneTask& task) {
        const std::lock_guard lock(mutex);
        ++tuned[std::string(task.key)];
      };
      ejk::ConfigSelectorChain selector(std::move(options));
      ejk::OfflineOptions here;
      here.folder = records, here.share = true;
      if (with_numbers) here.shard = Shard{i, processes};
      const auto result = autotune_recorded(selector, here);
      const std::lock_guard lock(mutex);
      EXPECT_THAT(result.skipped, IsEmpty());
      for (const auto& entry : result.entries) EXPECT_EQ(entry.outcome, ejk::Outcome::tuned);
      EXPECT_THAT(result.entries, SizeIs(24)) << "in whichever process they were tuned";
    });
  threads.clear();
  return tuned;
}

TEST_F(Sharing, ManyWithOneDirectoryTuneEachCallOnce) {
  record(24);
  for (const bool with_numbers : {true, false}) {
    const std::string path = folder.path() + (with_numbers ? "/a" : "/b");
    const auto tuned = tune_together(6, records, with_numbers, [&](size_t) {
      return std::make_shared<ejk::DirectoryStore>(path);
    });
    EXPECT_THAT(tuned, SizeIs(24));
    for (const auto& [key, times] : tuned) EXPECT_EQ(times, 1) << key;
  }
}

// Of calls that the others tune: it is they that a process in a large fleet meets.
TEST_F(Sharing, ADatabaseIsAskedForAllThatOthersStoredAtOnce) {
  if (const std::string why = PostgresServer::why_not(); !why.empty()) GTEST_SKIP() << why;
  record(24);
  PostgresServer server(false, "log_statement = all");
  const std::string url = server.url(server.new_database());
  auto options = ejk::testing::patient_options();
  options.environment = {};
  ejk::detail::PostgresStore others(url, options);
  std::string questions;
  here.tune_call = [&](const ejk::RecordedCall& call, double) {
    EXPECT_TRUE(questions.empty()) << "the others did the rest";
    for (size_t size = 1; size <= 24; ++size) {
      if (size == size_in(call.id)) continue;
      EXPECT_TRUE(others.put(entry(size, "2026-01-02T00:00:00Z")));
    }
    questions = ejk::testing::read_text(server.log());
    return entry(size_in(call.id), "2026-01-02T00:00:00Z");
  };
  const auto result = tune_with(std::make_shared<ejk::detail::SharedStore>(
      std::make_shared<ejk::DirectoryStore>(folder.path() + "/near"), url, options));
  EXPECT_EQ(result.elsewhere, 23u);
  questions = ejk::testing::read_text(server.log()).substr(questions.size());
  const auto count = [&](const std::string& words) {
    int found = 0;
    for (size_t at = questions.find(words); at != questions.npos;
         at = questions.find(words, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("SELECT ejk.lease("), 1) << "which showed that others are ahead\n" << questions;
  EXPECT_LE(count("execute <unnamed>"), 7) << questions;
}

TEST_F(Sharing, ManyWithOneDatabaseTuneEachCallOnce) {
  if (const std::string why = PostgresServer::why_not(); !why.empty()) GTEST_SKIP() << why;
  record(24);
  PostgresServer server;
  const std::string url = server.url(server.new_database());
  const auto tuned = tune_together(6, records, true, [&](size_t i) {
    auto options = ejk::testing::patient_options();
    options.environment = {};
    return std::make_shared<ejk::detail::SharedStore>(
        std::make_shared<ejk::DirectoryStore>(folder.path() + "/near" + std::to_string(i)), url,
        options);
  });
  EXPECT_THAT(tuned, SizeIs(24));
  for (const auto& [key, times] : tuned) EXPECT_EQ(times, 1) << key;
}

}  // namespace
