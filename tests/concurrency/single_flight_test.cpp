// SPDX-License-Identifier: Apache-2.0
// A key that many miss at once is tuned once: by threads, by processes, and past a dead one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <thread>

#include "fakes.h"
#include "wait.h"

namespace {

using ejk::testing::Openings;
using ejk::testing::wait_for_file;
using ejk::testing::wait_until;
using fakes::Show;

// Is asked by each call that memory does not answer.
class Misses final : public fakes::EmptyStore {
 public:
  std::atomic<int> count{0};
  std::function<void()> during_the_first;

  std::optional<ejk::Entry> get(const ejk::EntryId&, ejk::Detail, const ejk::Value*) override {
    if (count++ == 0 && during_the_first) during_the_first();
    return std::nullopt;
  }
  void wait_for(int misses) {
    wait_until([&] { return count >= misses; }, std::to_string(misses) + " misses");
  }
};

ejk::SelectorOptions options_with(const std::shared_ptr<Misses>& misses, fakes::Setup& setup) {
  ejk::SelectorOptions options = setup.options();
  options.persistent = fakes::cache_of(misses);
  options.persist_autotune = false;
  return options;
}

TEST(SingleFlight, SixteenThreadsThatMissOnOneKeyTuneItOnce) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    fakes::Setup setup;
    const auto misses = std::make_shared<Misses>();
    setup.tuner->before = [&](const ejk::TuneTask&) { misses->wait_for(16); };
    const ejk::Executor executor(options_with(misses, setup));
    std::barrier start(16);
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int t = 0; t < 16; ++t)
      threads.emplace_back([&] {
        std::vector<float> x(8), y(8);
        start.arrive_and_wait();
        executor(Show{}, x, y);
        right += y[0] == 2;
      });
    for (auto& t : threads) t.join();
    EXPECT_EQ(setup.tuner->asked, 1);
    EXPECT_EQ(right, 16);
  }
}

TEST(SingleFlight, AThreadThatMissedBeforeAnotherHadTunedDoesNotTuneAgain) {
  fakes::Setup setup;
  const auto misses = std::make_shared<Misses>();
  auto options = options_with(misses, setup);
  options.forbid_reautotune = false;  // else what is tuned here is known all the same
  const ejk::Executor executor(options);
  const auto call = [&] {
    std::vector<float> x(8), y(8);
    executor(Show{}, x, y);
    return y[0];
  };
  misses->during_the_first = [&] { std::thread([&] { EXPECT_EQ(call(), 2); }).join(); };
  EXPECT_EQ(call(), 2);
  EXPECT_EQ(setup.tuner->asked, 1);
}

TEST(SingleFlight, AThreadWhoseTunerThrowsDoesNotStrandTheOthers) {
  fakes::Setup setup;
  const auto misses = std::make_shared<Misses>();
  setup.tuner->before = [&](const ejk::TuneTask&) {
    misses->wait_for(8);
    throw std::runtime_error("the tuner broke");
  };
  const ejk::Executor executor(options_with(misses, setup));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      std::vector<float> x(8), y(8);
      executor(Show{}, x, y);
      right += y[0] == 7;  // the heuristic
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(setup.tuner->asked, 1);
  EXPECT_EQ(right, 8);
}

TEST(SingleFlight, CallsOverlaysPutsAndClearsAtOnceAlwaysGiveAConfigThatWasPut) {
  fakes::Setup setup;
  auto options = setup.options();
  options.on_event = nullptr;
  const ejk::Executor executor(options);
  std::vector<float> x(8), z(8);
  const auto inv = executor.describe(Show{}, x, z);
  ejk::ConfigCache overlay;
  overlay.put(inv.device->fingerprint, inv.op(), inv.call_key(), Show::Config{100});
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, calls{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      std::vector<float> y(8);
      while (!stop) {
        executor(Show{}, x, y);
        wrong += y[0] != 2 && y[0] != 50;
        const auto scope = ejk::overlay_cache(overlay);
        executor(Show{}, x, y);
        wrong += y[0] != 100;
        ++calls;
      }
    });
  for (int i = 0; i < 200; ++i) {
    executor.chain().cache().put(inv.device->fingerprint, inv.op(), inv.call_key(),
                                 Show::Config{50});
    executor(Show{}, x, z);
    EXPECT_TRUE(z[0] == 50);
    executor.chain().cache().clear();
    wait_until([&, before = calls.load()] { return calls > before; }, "a call");
  }
  stop = true;
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// A process that runs Show on the store and reports "tuned" or "found" through a file. Its tuning
// lasts until the file REPORT.go is there.
pid_t start_process(const std::string& store, const std::string& report) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  fakes::Setup setup;
  setup.tuner->before = [&](const ejk::TuneTask& task) {
    std::ofstream(report + ".started") << "x";
    wait_until([&] {
      if (task.lease != nullptr) task.lease->refresh();  // as a tuner does between runs
      return std::filesystem::exists(report + ".go");
    });
  };
  const ejk::Executor executor(setup.options(store));
  std::vector<float> x(8), y(8);
  executor(Show{}, x, y);
  std::ofstream(report) << (setup.tuner->asked == 1 ? "tuned" : "found");
  _exit(y[0] == 2 ? 0 : 1);
}

std::string read(const std::string& path) {
  std::string text;
  std::ifstream(path) >> text;
  return text;
}

// One process tunes, and another one waits for its lease.
class TwoProcesses : public testing::Test {
 protected:
  TwoProcesses() {
    wait_for_file(a + ".started");
    Openings looks(store + "/leases");
    std::ofstream(b + ".go") << "x";
    second = start_process(store, b);
    looks.wait_for(2);  // one was in vain: it waits
  }
  static int status_of(pid_t process) {
    int status = -1;
    waitpid(process, &status, 0);
    return status;
  }

  const fakes::TempDir dir;
  const std::string store = dir.path() + "/store", a = dir.path() + "/a", b = dir.path() + "/b";
  const pid_t first = start_process(store, a);
  pid_t second = 0;
};

TEST_F(TwoProcesses, ThatMissOnOneKeyTuneItOnce) {
  std::ofstream(a + ".go") << "x";
  EXPECT_EQ(status_of(first), 0);
  EXPECT_EQ(status_of(second), 0);
  EXPECT_EQ(read(a), "tuned");
  EXPECT_EQ(read(b), "found");
}

TEST_F(TwoProcesses, ADeathWhileTuningDoesNotBlockTheOther) {
  EXPECT_FALSE(std::filesystem::exists(b)) << "it did not wait for the one that tunes";
  kill(first, SIGKILL);
  EXPECT_EQ(WTERMSIG(status_of(first)), SIGKILL);
  EXPECT_EQ(status_of(second), 0);
  EXPECT_EQ(read(b), "tuned");
}

}  // namespace
