// SPDX-License-Identifier: Apache-2.0
// First runs on OpenCL devices happen in workers: what is bad ends there, and this process goes on.
#include <dlfcn.h>
#include <poll.h>
#include <sys/syscall.h>

#include <array>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/detail/parcel.h>

#include "device_tunings.h"
#include "guard/descendants.h"
#include "guard/guard.h"
#include "paths.h"
#include "platform/backend.h"
#include "platform/program_cache.h"
#include "platform/zygote.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Drivers are asked in another process, so that this one has touched none.
class DeviceWorkers : public ::testing::Test {
 protected:
  void SetUp() override {
    static const bool found =
        child_succeeded(start_child([] { return !devices(Platform::opencl).empty(); }));
    if (!found) GTEST_SKIP() << "no OpenCL device here";
  }
};

const Device& device() { return devices(Platform::opencl).at(0); }
bool is_of(std::string_view platform) {
  return device().identity.find("platform")->as_string() == platform;
}

detail::ProgramCache::Counts programs_of_this_process() {
  return device().backend->programs().counts();
}

TEST_F(DeviceWorkers, RejectEachBadConfigAsWhatItIs) {
  EXPECT_TRUE(in_new_process([] {
    const Tuned tuned = tune(device(), Twice{}, bad_configs());
    EXPECT_EQ(tuned.guard, "child") << tuned.warnings;
    EXPECT_EQ(tuned.kind_of({8}), "");
    // Mesa's ends every loop after some time.
    EXPECT_EQ(tuned.kind_of({16, Act::is_endless}), is_of("rusticl") ? "wrong" : "timed_out");
    EXPECT_EQ(tuned.kind_of({16, Act::is_wild}), "crashed");
    EXPECT_THAT(tuned.why_of({16, Act::is_wild}), HasSubstr("SIGSEGV"));
    EXPECT_EQ(tuned.kind_of({16, Act::is_wrong}), "wrong");
    EXPECT_EQ(tuned.kind_of({16, Act::is_no_code}), "unbuildable");
    EXPECT_THAT(tuned.why_of({16, Act::is_no_code}), HasSubstr("error"));
    EXPECT_EQ(tuned.kind_of({16, Act::writes_beside}), "out_of_bounds");
    EXPECT_EQ(tuned.kind_of({1 << 20}), "invalid_launch");
    EXPECT_EQ(tuned.kind_of({4}), "");
    EXPECT_GT(tuned.compile_seconds, 0);
    EXPECT_EQ(programs_of_this_process().built, 0) << "workers do that";
  }));
}

TEST_F(DeviceWorkers, LeaveSamplesToTheDevicesClockUnlessItLies) {
  EXPECT_TRUE(in_new_process([] {
    const Tuned tuned = tune(device(), Twice{}, {{8}, {4}});
    EXPECT_EQ(tuned.clock, device().backend->clock_lies ? "wall" : "device");
    if (is_of("Portable Computing Language")) {
      EXPECT_EQ(tuned.clock, "device");
    }
  }));
}

TEST_F(DeviceWorkers, SayWhatTakesTooMuchLocalMemory) {
  EXPECT_TRUE(in_new_process([] {
    const Tuned tuned = tune(device(), Twice{}, {{8}, {16, Act::takes_local_memory}});
    EXPECT_EQ(tuned.kind_of({8}), "");
    if (is_of("rusticl")) {  // takes it, and needs long to make it
      EXPECT_NE(tuned.kind_of({16, Act::takes_local_memory}), "");
      return;
    }
    EXPECT_EQ(tuned.kind_of({16, Act::takes_local_memory}), "invalid_launch");
    EXPECT_THAT(tuned.why_of({16, Act::takes_local_memory}), HasSubstr("bytes of local memory"));
  }));
}

TEST_F(DeviceWorkers, WorkForAHostThatIgnoresItsChildren) {
  EXPECT_TRUE(in_new_process([] {
    signal(SIGCHLD, SIG_IGN);
    const Tuned tuned = tune(device(), Twice{}, {{8}, {16, Act::is_wild}});
    EXPECT_EQ(tuned.guard, "child") << tuned.warnings;
    EXPECT_EQ(tuned.kind_of({8}), "");
    EXPECT_EQ(tuned.kind_of({16, Act::is_wild}), "crashed");
  }));
}

TEST_F(DeviceWorkers, AreNoChildrenThatAHostWouldWaitFor) {
  EXPECT_TRUE(in_new_process([] {
    static_cast<void>(device());
    EXPECT_GT(detail::zygote_pid(), 0);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }));
}

TEST_F(DeviceWorkers, AreNotPreparedWhereNothingIsTuned) {
  for (const char* policy : {"heuristics", "frozen"})
    EXPECT_TRUE(in_new_process([&] {
      setenv("EJKERNEL_AUTOTUNE_POLICY", policy, 1);
      EXPECT_EQ(forks(), 0);
      static_cast<void>(device());
      EXPECT_EQ(forks(), 0);
    })) << policy;
  for (const AutotunePolicy& policy :
       {AutotunePolicy{.allow_autotune = false},
        AutotunePolicy{.allow_autotune = false, .allow_heuristics = false},
        AutotunePolicy{.guard = false}})
    EXPECT_TRUE(in_new_process([&] {
      EXPECT_EQ(forks(), 0);
      SelectorOptions options;
      options.policy = policy;
      const Executor executor(std::move(options));
      static_cast<void>(device());
      EXPECT_EQ(forks(), 0);
      EXPECT_THAT(detail::why_no_zygote(), Not(IsEmpty()));
    }));
}

TEST_F(DeviceWorkers, AreReplacedWhenTheyAreKilled) {
  EXPECT_TRUE(in_new_process([] {
    size_t killed = 0;
    const auto kill_worker = [&](const TuneProgress& p) {
      if (p.kind != TuneProgress::Kind::candidate || killed > 0) return;
      for (const pid_t worker : detail::children_of(detail::zygote_pid()))
        kill(worker, SIGKILL), ++killed;
    };
    const Tuned tuned = tune(device(), Twice{}, {{8}, {4}, {2}}, 100, kill_worker);
    EXPECT_GT(killed, 0u);
    EXPECT_EQ(tuned.guard, "child") << tuned.warnings;
    for (const int group : {8, 4, 2}) EXPECT_EQ(tuned.kind_of({group}), "") << group;
    EXPECT_TRUE(tuned.complete);
  }));
}

TEST_F(DeviceWorkers, SayNothingOfAConfigInWhichTheyWereKilled) {
  EXPECT_TRUE(in_new_process([] {
    const Tuned tuned = tune(device(), Twice{}, {{8}, {16, Act::kills_its_process}, {4}});
    EXPECT_EQ(tuned.kind_of({8}), "");
    EXPECT_EQ(tuned.kind_of({4}), "");
    EXPECT_EQ(tuned.kind_of({16, Act::kills_its_process}), "") << "it may be innocent";
    EXPECT_FALSE(tuned.complete);
  }));
}

TEST_F(DeviceWorkers, ServeSeveralThreadsAtOnce) {
  EXPECT_TRUE(in_new_process([] {
    static_cast<void>(device());
    std::array<Tuned, 3> tuned;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < tuned.size(); ++i)
      threads.emplace_back([&, i] {
        tuned[i] = tune(device(), Twice{}, {{8}, {16, Act::is_wild}}, 50 + static_cast<int64_t>(i));
      });
    for (std::thread& t : threads) t.join();
    for (const Tuned& one : tuned) {
      EXPECT_EQ(one.guard, "child") << one.warnings;
      EXPECT_EQ(one.kind_of({16, Act::is_wild}), "crashed");
    }
  }));
}

TEST_F(DeviceWorkers, BuildForTheNextProcessToo) {
  const Scratch store;
  const auto in_process = [&](bool first) {
    return child_succeeded(start_child([&] {
      host = getpid();
      setenv("EJKERNEL_PERSISTENT_CACHE_DIR", store.path().c_str(), 1);
      if (first) tune(device(), Twice{}, {{8}, {4}});
      else
        for (const int group : {16, 8, 4}) {
          const Tensor x = floats(10, device()), y = floats(10, device());
          Executor()(Twice{}, Twice::Config{group}, x, y);
          EXPECT_EQ(last_of(y), 20);
        }
      EXPECT_EQ(programs_of_this_process().built, 0);
      return !HasFailure();
    }));
  };
  EXPECT_TRUE(in_process(true));
  EXPECT_TRUE(in_process(false));
}

TEST_F(DeviceWorkers, EndWithTheirHost) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = start_child([&] {
    host = getpid();
    const auto tell = [&](const TuneProgress& p) {
      if (p.kind != TuneProgress::Kind::candidate) return;
      const pid_t all[] = {detail::zygote_pid(), detail::children_of(detail::zygote_pid()).at(0)};
      EXPECT_EQ(write(ends[1], all, sizeof all), static_cast<ssize_t>(sizeof all));
    };
    tune(device(), Twice{}, {{16, Act::is_endless}}, 100, tell);
    return true;
  });
  std::array<pid_t, 2> told{};
  ASSERT_EQ(read(ends[0], told.data(), sizeof told), static_cast<ssize_t>(sizeof told));
  std::vector<pollfd> processes;
  for (const pid_t one : told)
    processes.push_back({static_cast<int>(syscall(SYS_pidfd_open, one, 0)), POLLIN, 0});
  kill(child, SIGKILL);
  EXPECT_FALSE(child_succeeded(child));
  for (pollfd& one : processes) {
    constexpr int a_minute = 60'000;
    EXPECT_EQ(poll(&one, 1, a_minute), 1);
    close(one.fd);
  }
  for (const int end : ends) close(end);
}

TEST_F(DeviceWorkers, HoldNoFileOfTheirHost) {
  EXPECT_TRUE(in_new_process([] {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    static_cast<void>(device());
    ASSERT_GT(detail::zygote_pid(), 0);
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0) << "no other process can write";
    const std::string files = "/proc/" + std::to_string(detail::zygote_pid()) + "/fd";
    for (const std::string& name : base::list_directory(files)) {
      const std::string file = fs::read_symlink(fs::path(files) / name).string();
      EXPECT_TRUE(file == "/dev/null" || file.starts_with("socket:") ||
                  file == "anon_inode:[pidfd]")
          << file;
    }
  }));
}

// ---- stored configs that are not known to be safe -----------------------------------------------

std::shared_ptr<PersistentCache> own_store() { return std::make_shared<PersistentCache>(); }

// Puts it into the store as what somebody else measured.
void import_entry(const Twice::Config& config, const Tensor& x, const Tensor& y) {
  const Explanation call = Executor().explain(Twice{}, x, y);
  Entry entry;
  entry.id = {call.device, call.op, call.key, call.spec};
  entry.config = make_config(config).to_value();
  entry.environment = device().environment;
  entry.evidence.samples = 10, entry.evidence.complete = true;
  entry.provenance = "imported";
  ASSERT_TRUE(own_store()->put(entry, IfPresent::replace));
}

struct Choice {
  Twice::Config config;
  std::string warnings;
};
Choice choice_with_imported(const Twice::Config& imported) {
  const Tensor x = floats(100, device()), y = floats(100, device());
  import_entry(imported, x, y);
  Warnings warnings;
  SelectorOptions options;
  options.policy = patient();
  options.persistent = own_store();
  options.on_warning = warnings.sink();
  const Executor executor(std::move(options));
  executor(Twice{}, x, y);
  EXPECT_EQ(last_of(y), 200);
  const auto config = executor.choose_config(Twice{}, x, y).config;
  return {config, warnings.text()};
}

TEST_F(DeviceWorkers, TryAConfigThatWasImportedBeforeItRunsHere) {
  EXPECT_TRUE(in_new_process([] {
    const Choice choice = choice_with_imported({32});
    EXPECT_EQ(choice.config.group, 32);
    EXPECT_EQ(choice.warnings, "");
    EXPECT_GT(detail::zygote_pid(), 0);
  }));
  for (const Act bad : {Act::is_wild, Act::is_wrong})
    EXPECT_TRUE(in_new_process([&] {
      const Choice choice = choice_with_imported({32, bad});
      EXPECT_NE(choice.config.group, 32);
      EXPECT_EQ(choice.config.act, Act::nothing);
      EXPECT_THAT(choice.warnings, HasSubstr("did not pass in a child process"));
    }));
}

// No worker, no first run: the device of this process is not put at risk.
TEST_F(DeviceWorkers, AreNeededForAConfigThatWasImported) {
  EXPECT_TRUE(in_new_process([] {
    static_cast<void>(device());
    kill(detail::zygote_pid(), SIGKILL);
    const Choice choice = choice_with_imported({32});
    EXPECT_NE(choice.config.group, 32);
    EXPECT_THAT(choice.warnings, HasSubstr("did not pass in a child process: the process that "
                                           "starts workers is gone"));
  }));
}

// ---- without a guard: the journal keeps away what ended processes -------------------------------

TEST_F(DeviceWorkers, LeaveItToTheJournalWhereTheGuardIsOff) {
  const Scratch store;
  const Twice::Config deadly{16, Act::kills_its_process};
  const auto tuned_in_process = [&] {
    return child_succeeded(start_child([&] {
      setenv("EJKERNEL_PERSISTENT_CACHE_DIR", (store / "own").c_str(), 1);
      SelectorOptions options{.policy = patient(), .persistent = own_store()};
      options.policy->guard = false;
      const Tuned tuned = tune(device(), Twice{}, {{8}, deadly, {4}}, 100, {}, std::move(options));
      EXPECT_EQ(tuned.guard, "none");
      EXPECT_EQ(tuned.kind_of({8}), "");
      EXPECT_EQ(tuned.kind_of({4}), "");
      EXPECT_THAT(tuned.why_of(deadly), HasSubstr("2 processes died while they ran it"));
      std::fflush(nullptr);
      return !HasFailure();
    }));
  };
  EXPECT_FALSE(tuned_in_process()) << "it ends its process";
  EXPECT_FALSE(tuned_in_process()) << "one death may have been an accident";
  EXPECT_TRUE(tuned_in_process());
}

// ---- where there can be none: this is said, and tunings go on ----------------------------------

struct Remembering {
  static constexpr std::string_view op_id = "remembering";
  using Config = Twice::Config;
  std::vector<int> what{1, 2, 3};
  void run_gpu(const Config& c, DeviceView<const float, 1> x, Out<DeviceView<float, 1>> y) const {
    Twice{}.run_gpu(c, x, y);
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{}}; }
};

TEST_F(DeviceWorkers, CannotRunAKernelWhoseMembersAreNotPlain) {
  EXPECT_TRUE(in_new_process([] {
    const Tuned tuned = tune(device(), Remembering{}, {{8}, {16, Act::is_wrong}});
    EXPECT_EQ(tuned.guard, "none");
    EXPECT_THAT(tuned.warnings, HasSubstr("first runs are not guarded: the kernel's members"));
    EXPECT_EQ(tuned.kind_of({16, Act::is_wrong}), "wrong");
  }));
}

// A trial whose code is said to lie elsewhere.
class MovedTrial final : public Trial {
 public:
  explicit MovedTrial(void* code) : code_(code) {}
  const Device* device() const override { return &testing::device(); }
  std::shared_ptr<const detail::Parcel> parcel() override {
    auto parcel = std::make_shared<detail::Parcel>();
    parcel->open = reinterpret_cast<decltype(parcel->open)>(code_);
    parcel->arguments = Value::array();
    return parcel;
  }
  void reset() override {}
  void run(const AnyConfig&) override {}
  bool run_reference() override { return false; }
  std::vector<OutputBytes> outputs() override { return {}; }

 private:
  void* code_;
};

TEST_F(DeviceWorkers, DoNotHaveTheCodeOfALibraryThatWasLoadedLater) {
  EXPECT_TRUE(in_new_process([] {
    static_cast<void>(device());
    void* const library = dlopen(test::plugin("none").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    MovedTrial trial(dlsym(library, "nothing"));
    EXPECT_THAT(detail::Guard(trial).start_worker(), HasSubstr("was loaded after"));
  }));
}

TEST_F(DeviceWorkers, CannotBeHadAfterTheProgramUsedADriver) {
  EXPECT_TRUE(in_new_process([] {
    void* const library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    unsigned count = 0;
    reinterpret_cast<int (*)(unsigned, void*, unsigned*)>(dlsym(library, "clGetPlatformIDs"))(
        0, nullptr, &count);
    EXPECT_GT(count, 0u);
    const Tuned tuned = tune(device(), Twice{}, {{8}, {4}});
    EXPECT_EQ(tuned.guard, "none");
    EXPECT_THAT(tuned.warnings, HasSubstr("the program used a driver before this library did"));
  }));
}

TEST_F(DeviceWorkers, AreGoneWithTheProcessThatStartsThem) {
  EXPECT_TRUE(in_new_process([] {
    static_cast<void>(device());
    kill(detail::zygote_pid(), SIGKILL);
    const Tuned tuned = tune(device(), Twice{}, {{8}, {4}});
    EXPECT_EQ(tuned.guard, "none");
    EXPECT_THAT(tuned.warnings, HasSubstr("the process that starts workers is gone"));
  }));
}

}  // namespace
}  // namespace ejk::testing
