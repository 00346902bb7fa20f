// SPDX-License-Identifier: Apache-2.0
// A key that many miss at once is tuned once: by threads, by processes, and past a dead one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <fstream>
#include <thread>

#include "fakes.h"

namespace {

using fakes::Show;
using namespace std::chrono_literals;

TEST(SingleFlight, SixteenThreadsThatMissOnOneKeyTuneItOnce) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    fakes::Setup setup;
    setup.tuner->before = [](const ejk::TuneTask&) { std::this_thread::sleep_for(20ms); };
    const ejk::Executor executor(setup.options());
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

TEST(SingleFlight, AThreadWhoseTunerThrowsDoesNotStrandTheOthers) {
  fakes::Setup setup;
  setup.tuner->before = [](const ejk::TuneTask&) {
    std::this_thread::sleep_for(10ms);
    throw std::runtime_error("the tuner broke");
  };
  const ejk::Executor executor(setup.options());
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
  std::atomic<int> wrong{0};
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
      }
    });
  for (int i = 0; i < 200; ++i) {
    executor.chain().cache().put(inv.device->fingerprint, inv.op(), inv.call_key(),
                                 Show::Config{50});
    executor(Show{}, x, z);
    EXPECT_TRUE(z[0] == 50);
    executor.chain().cache().clear();
    std::this_thread::sleep_for(200us);
  }
  stop = true;
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// A process that runs Show on the store and reports "tuned" or "found" through a file.
pid_t start_process(const std::string& store, const std::string& report,
                    std::chrono::milliseconds tuning) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  fakes::Setup setup;
  setup.tuner->before = [&](const ejk::TuneTask& task) {
    std::ofstream(report + ".started") << "x";
    const auto end = std::chrono::steady_clock::now() + tuning;
    while (std::chrono::steady_clock::now() < end) {
      if (task.lease != nullptr) task.lease->refresh();  // as a tuner does between runs
      std::this_thread::sleep_for(10ms);
    }
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

void wait_for_file(const std::string& path) {
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(1ms);
}

TEST(SingleFlight, TwoProcessesThatMissOnOneKeyTuneItOnce) {
  const fakes::TempDir dir;
  const std::string store = dir.path() + "/store", a = dir.path() + "/a", b = dir.path() + "/b";
  const pid_t first = start_process(store, a, 300ms);
  wait_for_file(a + ".started");
  const pid_t second = start_process(store, b, 300ms);
  int status = 1;
  waitpid(first, &status, 0);
  EXPECT_EQ(status, 0);
  waitpid(second, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(a), "tuned");
  EXPECT_EQ(read(b), "found");
}

TEST(SingleFlight, AProcessThatDiesWhileTuningDoesNotBlockTheOther) {
  const fakes::TempDir dir;
  const std::string store = dir.path() + "/store", a = dir.path() + "/a", b = dir.path() + "/b";
  const pid_t first = start_process(store, a, 60s);
  wait_for_file(a + ".started");
  const pid_t second = start_process(store, b, 1ms);
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(std::filesystem::exists(b)) << "it did not wait for the one that tunes";
  kill(first, SIGKILL);
  int status = 1;
  waitpid(first, &status, 0);
  waitpid(second, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(b), "tuned");
}

}  // namespace
