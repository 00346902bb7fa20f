// SPDX-License-Identifier: Apache-2.0
// What the warm table finds, what it forgets, and that nothing is freed while a call uses it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <optional>
#include <thread>

#include <ejk/detail/hash.h>
#include <ejk/detail/warm_table.h>

#include "fakes.h"
#include "sanitized.h"

namespace {

using ejk::detail::WarmEntry;
using ejk::detail::WarmFound;
using ejk::detail::WarmReaders;
using ejk::detail::WarmTable;

// A config that shows whether it was destroyed, and counts how many were not.
std::atomic<int> alive{0};
struct Number {
  explicit Number(int n) : number(n), again(n) { ++alive; }
  ~Number() { number = again = -1, --alive; }
  Number(const Number&) = delete;
  int number, again;
};
const ejk::ConfigType number_type = {
    "Number", [](const void* n) { return ejk::Value(static_cast<const Number*>(n)->number); },
    [](const ejk::Value&, std::string&) { return std::shared_ptr<const void>(); }};

// What a call that uses an entry has of it; 0 if there is none.
class Use {
 public:
  explicit Use(const WarmFound& found) : entry_(found.entry) {
    if (entry_ != nullptr) use_.emplace(found);
  }
  int number() const {
    if (entry_ == nullptr) return 0;
    const auto* number = static_cast<const Number*>(entry_->config);
    return number->number == number->again ? number->number : -1;
  }

 private:
  const WarmEntry* entry_;
  std::optional<ejk::detail::WarmUse> use_;
};

struct Words {
  std::vector<uint64_t> words;
  bool equal(const WarmEntry& entry) const {
    return std::equal(words.begin(), words.end(), entry.words, entry.words + entry.count);
  }
  uint64_t hash() const { return ejk::detail::hash_words(words.data(), words.size()); }
};
// Long keys too.
Words key(uint64_t n) { return {std::vector<uint64_t>(n % 3 == 0 ? 20 : 2, n)}; }

void publish(WarmTable& table, uint64_t n, int number, uint64_t generation = 0) {
  auto entry = std::make_unique<WarmEntry>();
  entry->owner = {std::make_shared<Number>(number), &number_type};
  table.publish(key(n).hash(), std::move(entry), key(n).words, generation);
}
Use find(const WarmTable& table, uint64_t n, uint64_t generation = 0) {
  table.enlist();
  return Use(table.find(key(n).hash(), key(n), generation));
}
int number_at(const WarmTable& table, uint64_t n, uint64_t generation = 0) {
  return find(table, n, generation).number();
}

// With the barrier that writers make threads pass, and with one in every call.
class WarmTableTest : public testing::TestWithParam<bool> {
 protected:
  static WarmReaders& readers() {
    static auto* const fenced = new WarmReaders(true);
    return GetParam() ? *fenced : WarmReaders::all();
  }
  void TearDown() override { EXPECT_LE(alive, static_cast<int>(table.entries())); }

  WarmTable table{1000, readers()};
};
INSTANTIATE_TEST_SUITE_P(Readers, WarmTableTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Fenced" : "Unfenced"; });

TEST_P(WarmTableTest, AReplacedEntryIsFreed) {
  for (int i = 1; i <= 1000; ++i) publish(table, 5, i);
  EXPECT_EQ(number_at(table, 5), 1000);
  EXPECT_EQ(table.entries(), 1u);
  EXPECT_EQ(alive, 1);
}

TEST_P(WarmTableTest, AnEntryOfAnEarlierGenerationIsFreed) {
  for (uint64_t generation = 0; generation < 10; ++generation)
    for (uint64_t n = 1; n <= 100; ++n) publish(table, n, static_cast<int>(n), generation);
  EXPECT_EQ(number_at(table, 7, 9), 7);
  EXPECT_EQ(number_at(table, 7, 8), 0);
  EXPECT_EQ(table.entries(), 100u);
  EXPECT_EQ(alive, 100);
}

TEST_P(WarmTableTest, GoesWithAllItHolds) {
  {
    WarmTable other(1000, readers());
    for (uint64_t n = 1; n <= 200; ++n) publish(other, n, 1);
    const Use used = find(other, 3);
    publish(other, 3, 2);
    EXPECT_EQ(alive, 201);
  }
  EXPECT_EQ(alive, 0);
}

TEST_P(WarmTableTest, ACallThatDoesNotEndKeepsItsOwnEntryAndNoOther) {
  publish(table, 1, 11), publish(table, 2, 22);
  {
    const Use used = find(table, 1);
    for (int i = 100; i < 1100; ++i) publish(table, 1, i), publish(table, 2, i);
    for (uint64_t generation = 1; generation < 100; ++generation) publish(table, 2, 5, generation);
    EXPECT_EQ(used.number(), 11);
    EXPECT_EQ(table.entries(), 2u);
  }
  publish(table, 2, 6, 99);
  EXPECT_EQ(table.entries(), 1u);
  EXPECT_EQ(alive, 1);
}

TEST_P(WarmTableTest, CallsWithinCallsKeepTheEntriesOfAll) {
  constexpr int depth = 20;
  publish(table, 1, 0);
  auto call = [&](auto& self, int level) -> void {
    publish(table, 1, level + 1);
    const Use used = find(table, 1);
    if (level < depth) self(self, level + 1);
    else publish(table, 1, 1000);
    EXPECT_EQ(used.number(), level + 1);
  };
  call(call, 0);
  publish(table, 1, 1001);
  EXPECT_EQ(table.entries(), 1u);
}

TEST_P(WarmTableTest, AnEntryMayBeLetGoOnAnotherThread) {
  publish(table, 1, 11);
  auto used = std::unique_ptr<Use>(new Use(find(table, 1)));
  std::thread([&] {
    publish(table, 1, 12);
    EXPECT_EQ(used->number(), 11);
    used.reset();
    publish(table, 1, 13);
  }).join();
  EXPECT_EQ(table.entries(), 1u);
  EXPECT_EQ(number_at(table, 1), 13);
}

TEST_P(WarmTableTest, ThreadsUseTheReadersOfThoseThatEnded) {
  publish(table, 1, 11);
  std::thread([&] { EXPECT_EQ(number_at(table, 1), 11); }).join();
  const size_t before = readers().size();
  for (int i = 0; i < 200; ++i) std::thread([&] { EXPECT_EQ(number_at(table, 1), 11); }).join();
  EXPECT_EQ(readers().size(), before);
}

TEST_P(WarmTableTest, AFullTableDropsItsFirstEntriesAndFindsTheOthers) {
  WarmTable small(64, readers());
  for (uint64_t n = 1; n <= 1000; ++n) {
    publish(small, n, static_cast<int>(n));
    EXPECT_LE(small.entries(), 64u);
    EXPECT_EQ(number_at(small, n), static_cast<int>(n));
    EXPECT_TRUE(n <= 47 || number_at(small, n - 47) == static_cast<int>(n - 47));
    EXPECT_TRUE(n <= 64 || number_at(small, n - 64) == 0);
  }
}

TEST_P(WarmTableTest, ATableForOneHoldsTheLast) {
  WarmTable smallest(0, readers());
  for (uint64_t n = 1; n <= 10; ++n) publish(smallest, n, static_cast<int>(n));
  EXPECT_EQ(number_at(smallest, 10), 10);
  EXPECT_EQ(smallest.entries(), 1u);
}

TEST_P(WarmTableTest, AnEntryIsNeverFreedWhileACallUsesIt) {
  constexpr int changes = sanitized ? 3000 : 20000;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> generation{0};
  std::atomic<int> found{0};
  auto read = [&](uint64_t n) {
    const Use used = find(table, n, generation);
    if (used.number() == 0) return;
    ++found;
    const Use within = find(table, n % 5 + 1, generation);
    if (n % 7 == 0) std::this_thread::yield();
    if (used.number() <= 0 || within.number() < 0) ++wrong;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!stop)
        std::thread([&] {  // each a short one
          for (uint64_t i = 0; i < 2000 && !stop; ++i) read(i % 5 + 1);
        })
            .join();
    });
  for (int i = 1; i <= changes || found < 1000; ++i) {
    publish(table, static_cast<uint64_t>(i) % 5 + 1, i, generation);
    if (i % 50 == 0) publish(table, 1, i, ++generation);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  publish(table, 1, 1, ++generation);
  EXPECT_EQ(table.entries(), 1u);
  EXPECT_EQ(alive, 1);
}

TEST(WarmTable, AForkedChildDoesNotWaitForThreadsThatItDoesNotHave) {
  WarmTable table(1000);
  publish(table, 1, 11);
  std::barrier steps(2);
  std::thread other([&] {
    const Use used = find(table, 1);
    steps.arrive_and_wait();
    steps.arrive_and_wait();
  });
  steps.arrive_and_wait();
  publish(table, 2, 22);
  const Use mine = find(table, 2);
  const pid_t child = fork();
  if (child == 0) {
    publish(table, 1, 12), publish(table, 2, 23);
    _exit(mine.number() == 22 && table.entries() == 3 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  publish(table, 1, 12);
  EXPECT_EQ(table.entries(), 3u) << "the parent's thread still uses the first";
  steps.arrive_and_wait();
  other.join();
}

// ---- through an executor ------------------------------------------------------------------------

// Calls itself, clears the cache, throws: whatever the arguments say.
struct Wild {
  static constexpr std::string_view op_id = "wild";
  struct Config {
    int block = 0;
  };
  static inline const ejk::Executor* executor = nullptr;
  void run(const Config& c, ejk::Unkeyed<int> depth, ejk::Unkeyed<bool> throws) const {
    const int before = c.block;
    if (depth.value > 0) {
      executor->chain().cache().clear();
      (*executor)(Wild{}, depth.value - 1, throws.value);
    }
    if (c.block != before) std::abort();
    if (throws.value) throw std::runtime_error("wild");
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {7}; }
};

TEST(WarmCalls, LeaveNothingBehindWhetherTheyNestClearOrThrow) {
  fakes::Setup setup;
  auto options = setup.options();
  options.on_event = nullptr;
  const ejk::Executor executor(options);
  Wild::executor = &executor;
  const Wild wild;
  for (int i = 0; i < 50; ++i) {
    executor(wild, 0, false);
    EXPECT_THROW(executor(wild, i % 10, true), std::runtime_error);
  }
  executor.chain().cache().clear();
  executor(wild, 0, false);
  EXPECT_EQ(executor.chain().warm().entries(), 1u);
}

// Thread-local objects end in the reverse order: this one after the thread's reader.
TEST(WarmCalls, WorkWhileTheirThreadEnds) {
  fakes::Setup setup;
  const ejk::Executor executor(setup.options());
  std::vector<float> x(8), y(8);
  struct Late {
    const ejk::Executor* executor = nullptr;
    std::vector<float>*x = nullptr, *y = nullptr;
    ~Late() { (*executor)(fakes::Show{}, *x, *y); }
  };
  std::thread([&] {
    thread_local Late late;
    late.executor = &executor, late.x = &x, late.y = &y;
    std::vector<float> z(8);
    executor(fakes::Show{}, x, z);
    EXPECT_EQ(z[0], 2);
  }).join();
  EXPECT_EQ(y[0], 2);
}

}  // namespace
