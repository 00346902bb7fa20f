// SPDX-License-Identifier: Apache-2.0
// Processes that share a store: nothing is lost, nothing is torn, and dead processes block none.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/store.h>

#include "base/directory.h"
#include "store/entry_file.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using std::chrono::milliseconds;

constexpr int processes = 8;
constexpr int puts = sanitized ? 60 : 500;
constexpr int shared_keys = 5;
constexpr int kills = sanitized ? 40 : 200;

void expect_every_entry_parses(const std::string& root) {
  for (const std::string& file : files_below(root + "/v2")) {
    EXPECT_TRUE(file.ends_with(".json")) << file;
    EXPECT_TRUE(detail::read_entry(read_text(root + "/v2/" + file), Detail::all).entry) << file;
  }
}

// Every other put goes to a key that all processes write.
EntryId id_of(int process, int i) {
  return i % 2 == 0 ? call_id(i % (2 * shared_keys), "shared@v1") : call_id(process * puts + i);
}

// Puts ever better evidence. What is there must never get worse in the eyes of one writer.
bool write_better_and_better(const std::string& root, int process) {
  Warnings warnings;
  DirectoryStore store = open_store(root, warnings);
  std::map<std::string, int> best;
  for (int i = 0; i < puts; ++i) {
    const EntryId id = id_of(process, i);
    int& seen = best[store.file_of(id)];
    const auto before = store.get(id);
    if (seen != 0 && (!before || before->evidence.samples < seen)) return false;
    seen = processes * i + process + 1;
    if (!store.put(make_entry(id, process, seen))) return false;
  }
  return warnings.count() == 0;
}

TEST(StoreProcesses, WritersLoseNothingAndTheBestEvidenceStays) {
  const Scratch scratch(memory_directory());
  const std::string root = scratch / "store";
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process) {
    children.push_back(start_child([&] { return write_better_and_better(root, process); }));
  }
  for (const pid_t child : children) EXPECT_TRUE(child_succeeded(child));

  Warnings warnings;
  DirectoryStore store = open_store(root, warnings);
  for (int process = 0; process < processes; ++process) {
    for (int i = 0; i < puts; ++i) {
      const auto entry = store.get(id_of(process, i));
      ASSERT_TRUE(entry) << process << " " << i;
      if (i % 2 != 0) EXPECT_EQ(entry->config.find("block")->as_int(), process);
      else EXPECT_GE(entry->evidence.samples, processes * (puts - 2 * shared_keys));
    }
  }
  expect_every_entry_parses(root);
  EXPECT_TRUE(fs::is_empty(root + "/tmp"));
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

// Puts without end and tells of each one that is done.
[[noreturn]] void write_until_killed(const std::string& root, int report, int process) {
  Warnings warnings;
  DirectoryStore store = open_store(root, warnings);
  for (int i = 0;; ++i) {
    const int n = process * 4'000 + i;  // no more samples than are believed of an entry
    if (!store.put(make_entry(call_id(n % 7 == 0 ? n % 70 : n), n, n + 1))) ::_exit(1);
    if (::write(report, &n, sizeof n) != sizeof n) ::_exit(1);
  }
}

TEST(StoreProcesses, KilledWritersLeaveNothingTornAndLoseNothingReported) {
  const Scratch scratch(memory_directory());
  const std::string root = scratch / "store";
  std::mt19937 random(5);
  std::map<int, int> best;  // call -> the largest reported number, which is also its samples
  int reported = 0;
  for (int process = 0; process < kills; ++process) {
    int channel[2];
    ASSERT_EQ(::pipe(channel), 0);
    const pid_t child =
        start_child([&]() -> bool { write_until_killed(root, channel[1], process); });
    ::close(channel[1]);
    const auto take_report = [&] {
      int n = 0;
      if (::read(channel[0], &n, sizeof n) != sizeof n) return false;
      int& present = best[n % 7 == 0 ? n % 70 : n];
      present = std::max(present, n);
      return ++reported, true;
    };
    // Half of them are known to be at work, however slow the machine; the others may be starting.
    const bool at_work = process % 2 == 1 || take_report();
    EXPECT_TRUE(at_work);
    std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 20'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself";
    while (take_report()) continue;
    ::close(channel[0]);
  }
  EXPECT_GE(reported, kills / 2) << "the writers were killed before they did anything";

  Warnings warnings;
  DirectoryStore store = open_store(root, warnings);
  for (const auto& [call, n] : best) {
    const auto entry = store.get(call_id(call));
    ASSERT_TRUE(entry) << call;
    EXPECT_GE(entry->evidence.samples, n + 1);
  }
  expect_every_entry_parses(root);
  EXPECT_TRUE(store.put(make_entry(call_id(-1))));
  EXPECT_TRUE(fs::is_empty(root + "/tmp")) << "leftovers are removed by the next put";
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST(StoreProcesses, ReadersNeverSeeHalfAnEntry) {
  const Scratch scratch(memory_directory());
  const std::string root = scratch / "store";
  Warnings warnings;
  DirectoryStore store = open_store(root, warnings);
  ASSERT_TRUE(store.put(make_entry(call_id(1))));
  const pid_t writer = start_child([&] {
    Warnings said;
    DirectoryStore own = open_store(root, said);
    Entry entry = make_entry(call_id(1));
    for (int i = 0; i < (sanitized ? 50 : 300); ++i) {
      entry.config["filler"] = std::string(static_cast<size_t>(i % 50) * 200, 'x');
      if (!own.put(entry, ejk::IfPresent::replace)) return false;
    }
    return true;
  });
  int status = 0, reads = 0;
  while (::waitpid(writer, &status, WNOHANG) == 0) {
    ASSERT_TRUE(store.get(call_id(1)));
    ++reads;
  }
  EXPECT_EQ(status, 0);
  EXPECT_GT(reads, 0);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

// A damaged file is set aside by the first process that sees it, but never the good one that came
// in its place.
TEST(StoreProcesses, SettingAsideNeverTakesAGoodFile) {
  const Scratch scratch(memory_directory());
  const std::string root = scratch / "store";
  std::vector<pid_t> children;
  for (int process = 0; process < 4; ++process) {
    children.push_back(start_child([&] {
      Warnings said;
      DirectoryStore store = open_store(root, said);
      for (int i = 0; i < (sanitized ? 20 : 100); ++i) {
        if (process == 0) write_text(store.file_of(call_id(i)), "damaged");
        (void)store.get(call_id(i));
        if (process != 0 && !store.put(make_entry(call_id(i)))) return false;
        (void)store.get(call_id(i));
      }
      return true;
    }));
  }
  for (const pid_t child : children) EXPECT_TRUE(child_succeeded(child));
  for (const std::string& file : files_below(root)) {
    if (!file.ends_with(".bad")) continue;
    EXPECT_EQ(read_text(root + "/" + file).substr(0, 7), "damaged");
  }
}

// ---- leases

TEST(StoreProcesses, TheLeaseOfAKilledHolderIsFree) {
  const Scratch scratch(memory_directory());
  Warnings warnings;
  DirectoryStore store = open_store(scratch / "store", warnings);
  int channel[2];
  ASSERT_EQ(::pipe(channel), 0);
  const pid_t holder = start_child([&] {
    const auto lease = store.lease(call_id(1), 0);
    const char held = lease ? 'y' : 'n';
    if (::write(channel[1], &held, 1) != 1) return false;
    for (;;) ::pause();
  });
  char held = 0;
  ASSERT_EQ(::read(channel[0], &held, 1), 1);
  ASSERT_EQ(held, 'y');
  EXPECT_EQ(store.lease(call_id(1), 0.06), nullptr) << "patience runs out";
  Openings looks(scratch / "store/leases");
  std::jthread killer([&] {
    looks.wait_for(2);  // one was in vain: it waits
    ::kill(holder, SIGKILL);
  });
  EXPECT_NE(store.lease(call_id(1), 20), nullptr);
  ::waitpid(holder, nullptr, 0);
  ::close(channel[0]);
  ::close(channel[1]);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST(StoreProcesses, AForkedChildNeitherReleasesNorKeepsItsParentsLease) {
  const Scratch scratch(memory_directory());
  Warnings warnings;
  DirectoryStore store = open_store(scratch / "store", warnings);
  auto lease = store.lease(call_id(1), 0);
  ASSERT_NE(lease, nullptr);
  EXPECT_TRUE(child_succeeded(start_child([&] {
    lease.reset();
    return true;
  })));
  EXPECT_EQ(store.lease(call_id(1), 0), nullptr) << "released by the child";
  const pid_t child = start_child([]() -> bool {
    for (;;) ::pause();
  });
  lease.reset();
  EXPECT_NE(store.lease(call_id(1), 0), nullptr) << "kept by the child";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(StoreProcesses, OnlyOneProcessTunesAtATime) {
  const Scratch scratch(memory_directory());
  const std::string root = scratch / "store", mark = scratch / "tuning";
  std::vector<pid_t> children;
  for (int process = 0; process < 4; ++process) {
    children.push_back(start_child([&] {
      Warnings said;
      DirectoryStore store = open_store(root, said);
      for (int i = 0; i < 20; ++i) {
        auto lease = store.lease(call_id(1), 30);
        while (!lease) lease = store.lease(call_id(1), 30);  // a silent holder
        if (!fs::create_directory(mark)) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        fs::remove(mark);
      }
      return true;
    }));
  }
  for (const pid_t child : children) EXPECT_TRUE(child_succeeded(child));
  EXPECT_TRUE(files_below(root + "/leases").empty());
}

// ---- the locks and temporary files below all this

using base::FileLock;

TEST(StoreProcesses, ALockFileThatIsRemovedAfterUseLocksAllTheSame) {
  const Scratch scratch(memory_directory());
  std::atomic<int> holders = 0;
  std::vector<std::jthread> workers;
  for (int t = 0; t < 4; ++t) {
    workers.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        const FileLock lock(directory_at(scratch.path()), "lock",
                            {milliseconds(60'000), milliseconds(1)},
                            FileLock::AfterUse::remove_file);
        ASSERT_TRUE(lock.held()) << lock.error().text();
        EXPECT_EQ(holders.fetch_add(1), 0);
        std::this_thread::yield();
        holders.fetch_sub(1);
      }
    });
  }
}

TEST(StoreProcesses, AForkedChildDoesNotKeepItsParentsLock) {
  const Scratch scratch(memory_directory());
  const auto lock = [&] {
    return std::make_unique<FileLock>(directory_at(scratch.path()), "lock", FileLock::Wait{},
                                      FileLock::AfterUse::keep_file);
  };
  auto first = lock();
  ASSERT_TRUE(first->held());
  const pid_t child = start_child([]() -> bool {
    for (;;) ::pause();
  });
  first.reset();
  EXPECT_TRUE(lock()->held());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(StoreProcesses, ACleanerNeverTakesAFileBeingWritten) {
  const Scratch scratch(memory_directory());
  const base::Directory directory = directory_at(scratch.path());
  std::jthread cleaner([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) directory.remove_leftovers();
  });
  for (int i = 0; i < (sanitized ? 2000 : 20'000); ++i) {
    const auto error = directory.replace("file", "text", directory);
    ASSERT_FALSE(error) << error.text();
  }
  EXPECT_EQ(read_text(scratch / "file"), "text");
}

}  // namespace
}  // namespace ejk
