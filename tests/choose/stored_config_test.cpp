// SPDX-License-Identifier: Apache-2.0
// Which configs of a store may run a call.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Of all processes together.
struct Runs {
  std::atomic<int> here, in_children;
};
Runs& runs() {
  static auto* const shared = static_cast<Runs*>(
      ::mmap(nullptr, sizeof(Runs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *shared;
}
const pid_t this_process = ::getpid();

// y = 2 x in blocks; one of 0 never ends, -1 crashes, 13 is wrong, and 20 only waits in a child.
struct Doubled {
  static constexpr std::string_view op_id = "doubled", version = "1";
  struct Config {
    int block = 0;
  };
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    ++(::getpid() == this_process ? runs().here : runs().in_children);
    if (c.block == 0 && ::getpid() == this_process) throw std::logic_error("an endless loop here");
    if (c.block == -1) __builtin_trap();
    if (c.block == 20 && ::getpid() != this_process) ::pause();  // for a thread of the host
    for (size_t i = 0; i < x.size(); i += static_cast<size_t>(c.block))
      for (size_t j = i; j < std::min(x.size(), i + static_cast<size_t>(c.block)); ++j)
        (*y)[j] = c.block == 13 ? 0 : 2 * x[j];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {8}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{4}, {16}}; }
};

struct DoubledIfValid : Doubled {
  static constexpr std::string_view op_id = "doubled_if_valid";
  static bool is_valid(const Config& c, const ejk::Invocation&) { return c.block != 5; }
};

class StoredConfigs : public ::testing::Test {
 protected:
  StoredConfigs() { runs().here = 0, runs().in_children = 0; }

  ejk::Executor executor(ejk::AutotunePolicy policy = {.allow_autotune = false}) {
    ejk::SelectorOptions o = setup.options();
    o.policy = policy;
    o.persistent = std::make_shared<ejk::PersistentCache>(folder.path());
    return ejk::Executor(std::move(o));
  }

  template <class K>
  ejk::Entry entry_for(const K& kernel, const ejk::Value& config) {
    const ejk::Explanation call = executor().explain(kernel, x, y);
    ejk::Entry entry;
    entry.id = {call.device, call.op, call.key, call.spec};
    entry.config = config;
    entry.environment = ejk::cpu_device().environment;
    entry.evidence.samples = 10;
    return entry;
  }
  template <class K>
  void store(const K& kernel, int block, const std::string& provenance = "measured") {
    ejk::Entry entry = entry_for(kernel, ejk::Value::object({{"block", block}}));
    entry.provenance = provenance;
    ASSERT_TRUE(ejk::PersistentCache(folder.path()).put(entry, ejk::IfPresent::replace));
  }
  template <class K>
  int block_of_call(ejk::Executor& e, const K& kernel) {
    e(kernel, x, y);
    EXPECT_EQ(y, std::vector<float>(x.size(), 6));
    return e.choose_config(kernel, x, y).config.block;
  }

  fakes::TempDir folder;
  fakes::Setup setup;
  const std::vector<float> x = std::vector<float>(100, 3);
  std::vector<float> y = std::vector<float>(100);
};

TEST_F(StoredConfigs, RunAtOnceIfTheKernelOffersThem) {
  for (const int block : {8, 4, 16}) {
    store(Doubled{}, block, "imported");
    auto e = executor();
    EXPECT_EQ(block_of_call(e, Doubled{}), block);
  }
  EXPECT_EQ(runs().in_children, 0);
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
}

TEST_F(StoredConfigs, RunAtOnceIfTheyWereMeasuredAndTheKernelSaysThatTheyAreValid) {
  store(DoubledIfValid{}, 10);
  auto e = executor();
  EXPECT_EQ(block_of_call(e, DoubledIfValid{}), 10);
  EXPECT_EQ(runs().in_children, 0);
}

TEST_F(StoredConfigs, RunInAChildFirstIfTheyAreNotTrusted) {
  store(Doubled{}, 10);                        // the kernel has no is_valid
  store(DoubledIfValid{}, 12, "transferred");  // measured elsewhere
  auto e = executor();
  EXPECT_EQ(block_of_call(e, Doubled{}), 10);
  const int runs_of_first = runs().in_children;
  EXPECT_GT(runs_of_first, 0);
  EXPECT_EQ(block_of_call(e, DoubledIfValid{}), 12);
  EXPECT_GT(runs().in_children, runs_of_first);
  EXPECT_THAT(setup.warnings.take(), IsEmpty());
}

TEST_F(StoredConfigs, RunInAChildOnceInAProcess) {
  store(Doubled{}, 10);
  auto e = executor();
  EXPECT_EQ(block_of_call(e, Doubled{}), 10);
  const int first = runs().in_children;
  e.chain().cache().clear();
  EXPECT_EQ(block_of_call(e, Doubled{}), 10);
  EXPECT_EQ(runs().in_children, first);
}

TEST_F(StoredConfigs, ThatDoNotPassInAChildNeverRunHere) {
  for (const int block : {0, -1, 13}) {
    runs().in_children = 0;
    store(Doubled{}, block);
    auto e = executor();
    EXPECT_EQ(block_of_call(e, Doubled{}), 8) << "the heuristic";
    EXPECT_THAT(setup.warnings.take(),
                ElementsAre(AllOf(HasSubstr("[doubled@v1]"), HasSubstr("not among the kernel's"),
                                  HasSubstr("is not used"))));
    const int tried = runs().in_children;
    e.chain().cache().clear();
    EXPECT_EQ(block_of_call(e, Doubled{}), 8);
    EXPECT_EQ(runs().in_children, tried) << "it was known";
  }
}

TEST_F(StoredConfigs, ThatDoNotPassInAChildAreAnErrorIfNothingElseIsAllowed) {
  store(Doubled{}, 0);
  auto frozen = executor({.allow_autotune = false, .allow_heuristics = false});
  EXPECT_THROW(frozen(Doubled{}, x, y), ejk::Error);
  EXPECT_THROW(frozen(Doubled{}, x, y), ejk::Error);
  EXPECT_EQ(runs().here, 0);
}

TEST_F(StoredConfigs, ThatAreNotValidDoNotRunAnywhere) {
  store(DoubledIfValid{}, 5, "imported");
  auto e = executor();
  EXPECT_EQ(block_of_call(e, DoubledIfValid{}), 8);
  EXPECT_EQ(runs().in_children, 0);
}

TEST_F(StoredConfigs, AreNotTriedToExplainThem) {
  store(Doubled{}, 10);
  auto e = executor();
  const ejk::Explanation why = e.explain(Doubled{}, x, y);
  EXPECT_EQ(why.origin, "persistent");
  EXPECT_THAT(why.text(), HasSubstr("first run happens in a child process"));
  EXPECT_EQ(runs().in_children, 0);
}

// Where nothing can be tried, the own store is believed, as far as it is what this user wrote.
TEST_F(StoredConfigs, ThatThisUserMeasuredRunWithoutTheGuard) {
  for (const char* provenance : {"measured", "put"}) {
    store(Doubled{}, 10, provenance);
    auto e = executor({.allow_autotune = false, .guard = false});
    EXPECT_EQ(block_of_call(e, Doubled{}), 10) << provenance;
  }
  for (const char* provenance : {"imported", "transferred", "anything"}) {
    store(Doubled{}, 10, provenance);
    auto e = executor({.allow_autotune = false, .guard = false});
    EXPECT_EQ(block_of_call(e, Doubled{}), 8) << provenance;
    EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("cannot be tried in a child")));
  }
  EXPECT_EQ(runs().in_children, 0);
}

// As in a tuning: its threads may be here.
TEST_F(StoredConfigs, ThatOnlyWaitInAChildRunIfTheyWereMeasured) {
  std::atomic<bool> over = false;
  const std::jthread pool([&] { over.wait(false); });
  store(Doubled{}, 20);
  auto own = executor();
  EXPECT_EQ(block_of_call(own, Doubled{}), 20);
  store(Doubled{}, 20, "imported");
  auto imported = executor();
  EXPECT_EQ(block_of_call(imported, Doubled{}), 8);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("did not pass in a child process")));
  over = true, over.notify_all();
}

TEST_F(StoredConfigs, AreTriedOnceForAllThreads) {
  store(Doubled{}, 10);
  auto alone = executor();
  EXPECT_EQ(block_of_call(alone, Doubled{}), 10);
  const int runs_of_one = runs().in_children.exchange(0);
  auto e = executor();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      std::vector<float> to(x.size());
      e(Doubled{}, x, to);
    });
  threads.clear();
  EXPECT_EQ(runs().in_children, runs_of_one);
}

// Holds one entry, and gives no leases.
class OneEntry final : public fakes::EmptyStore {
 public:
  explicit OneEntry(ejk::Entry entry) : entry_(std::move(entry)) {}
  std::optional<ejk::Entry> get(const ejk::EntryId& id, ejk::Detail = ejk::Detail::all,
                                const ejk::Value* = nullptr) override {
    return id.key == entry_.id.key ? std::optional(entry_) : std::nullopt;
  }
  bool put(const ejk::Entry& entry, ejk::IfPresent if_present) override {
    if (if_present == ejk::IfPresent::replace || ejk::better_evidence(entry, entry_))
      entry_ = entry;
    return true;
  }
  std::string where() const override { return "a store"; }

 private:
  ejk::Entry entry_;
};

TEST_F(StoredConfigs, RunInAChildFirstIfTheirEntryWasEdited) {
  ejk::SelectorOptions o = setup.options();
  o.policy->allow_autotune = false;
  ejk::Entry edited = entry_for(DoubledIfValid{}, ejk::Value::object({{"block", 10}}));
  edited.trusted = false;
  o.persistent = fakes::cache_of(std::make_shared<OneEntry>(edited));
  ejk::Executor guarded(o);
  EXPECT_EQ(block_of_call(guarded, DoubledIfValid{}), 10);
  EXPECT_GT(runs().in_children, 0);
  o.policy->guard = false, o.cache = nullptr;
  ejk::Executor unguarded(o);
  EXPECT_EQ(block_of_call(unguarded, DoubledIfValid{}), 8);
  EXPECT_THAT(setup.warnings.take(), ElementsAre(HasSubstr("cannot be tried in a child process")));
}

// Another process, for which the lease was not waited, has finished meanwhile.
TEST_F(StoredConfigs, AreNotReplacedByATuningThatKnewAnotherEntry) {
  const auto store =
      std::make_shared<OneEntry>(entry_for(Doubled{}, ejk::Value::object({{"renamed", 1}})));
  ejk::Entry better = entry_for(Doubled{}, ejk::Value::object({{"block", 16}}));
  better.evidence.samples = 1000;
  ejk::SelectorOptions o = setup.options();
  o.persistent = fakes::cache_of(store);
  setup.tuner->pick = 0;
  setup.tuner->before = [&](const ejk::TuneTask&) { store->put(better, ejk::IfPresent::replace); };
  ejk::Executor e(o);
  EXPECT_EQ(block_of_call(e, Doubled{}), 4);
  EXPECT_EQ(store->get(better.id)->config, better.config);
  setup.tuner->before = {};
  store->put(entry_for(Doubled{}, ejk::Value::object({{"renamed", 1}})), ejk::IfPresent::replace);
  o.cache = nullptr;
  ejk::Executor later(o);
  EXPECT_EQ(block_of_call(later, Doubled{}), 4);
  EXPECT_EQ(store->get(better.id)->config, ejk::Value::object({{"block", 4}}));
}

// ---- the config that runs is the one that was checked
// --------------------------------------------

struct Threaded {
  static constexpr std::string_view op_id = "threaded", version = "1";
  struct Config {
    int threads = 1;
    int block = 1;
  };
  int run(const Config& c, int) const { return c.threads; }
  static bool is_valid(const Config& c, const ejk::Invocation&) { return c.threads < 1000; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1, 1}, {1, 2}}; }
};

TEST_F(StoredConfigs, AskForNoMoreThreadsThanRunHere) {
  ejk::SelectorOptions o = setup.options();
  o.persistent = std::make_shared<ejk::PersistentCache>(folder.path());
  setup.tuner->outcome = ejk::Outcome::failed;
  ejk::Executor e(o);
  const ejk::Explanation call = e.explain(Threaded{}, 1);
  ejk::Entry entry;
  entry.id = {call.device, call.op, call.key, call.spec};
  entry.config = ejk::Value::object({{"threads", 1'000'000'000}, {"block", 1}});
  entry.environment = ejk::cpu_device().environment;
  entry.evidence.complete = false, entry.evidence.seconds = 1e-6;
  ejk::Measurement m;
  m.config = ejk::Value::object({{"threads", 1}, {"block", 2}});
  m.status = "slower", m.ratio = 2, m.samples = 10;
  entry.candidates = {m};
  ASSERT_TRUE(e.chain().persistent()->put(entry, ejk::IfPresent::replace));
  EXPECT_EQ(e(Threaded{}, 1), 1);
  EXPECT_EQ(e.choose_config(Threaded{}, 1).config.threads, 1);
}

}  // namespace
