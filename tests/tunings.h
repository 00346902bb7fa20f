// SPDX-License-Identifier: Apache-2.0
// What the tests of tunings share: a kernel whose config is its amount of work, counts of its runs
// in all processes, a store of its own for each test.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/autotune.h>

#include "fakes.h"
#include "replay.h"
#include "store_fixture.h"

namespace tunings {

using Kind = ejk::TuneProgress::Kind;

// What these tunings measure with; only the kernels here move it.
inline const auto stopwatch = std::make_shared<replay::ScriptedStopwatch>();

// Work of so many microseconds.
inline void spin(int microseconds) { stopwatch->pass(1e-6 * microseconds); }

inline std::shared_ptr<ejk::Tuner> scripted_tuner(ejk::TunerOptions options = {}) {
  options.stopwatch = stopwatch;
  return std::make_shared<ejk::Tuner>(std::move(options));
}

// Numbers that child processes write too.
class SharedCounts {
 public:
  static constexpr size_t size = 1024;
  SharedCounts()
      : counts_(
            static_cast<std::atomic<int>*>(mmap(nullptr, size * sizeof(int), PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  std::atomic<int>& operator[](int i) { return counts_[static_cast<size_t>(i)]; }
  void clear() {
    for (size_t i = 0; i < size; ++i) counts_[i] = 0;
  }

 private:
  std::atomic<int>* counts_;
};
inline SharedCounts runs;  // by units

// Its config is its amount of work, unless a test says otherwise. What is offered may change from
// one program to the next, which its key does not know.
struct Work {
  static constexpr std::string_view op_id = "work", version = "1";
  struct Config {
    int units = 0;
  };
  static inline std::vector<int> offered;
  static inline int heuristic = 0;
  static inline std::function<void(int)> work = spin;
  static inline std::function<bool(int)> valid;

  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    ++runs[c.units];
    work(c.units);
    std::ranges::copy(x, (*y).begin());
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {heuristic}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const {
    std::vector<Config> list;
    for (int units : offered) list.push_back({units});
    return list;
  }
  bool is_valid(const Config& c, const ejk::Invocation&) const { return !valid || valid(c.units); }
};

// The same without a guess.
struct Unguessed {
  static constexpr std::string_view op_id = "unguessed", version = "1";
  using Config = Work::Config;
  void run(const Config& c, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    Work{}.run(c, x, y);
  }
  std::vector<Config> candidate_cfgs(const ejk::Invocation& inv) const {
    return Work{}.candidate_cfgs(inv);
  }
};

struct ProgressLog {
  struct Seen {
    ejk::TuneProgress p;  // its views are gone
    std::string message;
  };
  std::vector<Seen> all;
  ejk::ProgressSink sink() {
    return [this](const ejk::TuneProgress& p) { all.push_back({p, std::string(p.message)}); };
  }
  std::vector<ejk::Value> configs(Kind kind) const {
    std::vector<ejk::Value> list;
    for (const Seen& s : all)
      if (s.p.kind == kind) list.push_back(s.p.config);
    return list;
  }
  size_t count(Kind kind) const { return configs(kind).size(); }
};

class Tunings : public testing::Test {
 protected:
  Tunings() {
    runs.clear();
    Work::offered = {40, 20};
    Work::heuristic = 40;
    Work::work = spin;
    Work::valid = nullptr;
  }

  ejk::SelectorOptions options() {
    ejk::SelectorOptions o;
    o.policy = ejk::AutotunePolicy{};
    o.policy->budget_seconds = 60;
    o.policy->resume_share = 1e9;
    o.tuner = scripted_tuner();
    o.on_event = events.sink();
    o.on_warning = warnings.sink();
    return o;
  }
  ejk::SelectorOptions stored_options(bool read_only = false) {
    ejk::SelectorOptions o = options();
    o.persistent = store(read_only);
    return o;
  }
  std::shared_ptr<ejk::PersistentCache> store(bool read_only = false) {
    ejk::DirectoryStore::Options directory;
    directory.read_only = read_only;
    directory.on_warning = warnings.sink();
    return std::make_shared<ejk::PersistentCache>(std::vector<std::shared_ptr<ejk::Store>>{
        std::make_shared<ejk::DirectoryStore>(dir.path(), directory)});
  }
  template <class K = Work>
  int tuned(const ejk::Executor& executor, const K& kernel = {}) {
    return executor.choose_config(kernel, x, y).config.units;
  }
  template <class K = Work>
  ejk::Entry stored(const K& kernel = {}) {
    const ejk::Executor executor(options());
    const auto inv = executor.describe(kernel, x, y);
    const auto found =
        store()->get({inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()});
    if (!found) throw std::runtime_error("nothing is stored");
    return found->entry;
  }
  // A tuning of the first `evaluations` candidates, of which the heuristic is one.
  void begin(int evaluations) {
    auto o = stored_options();
    o.policy->budget_evaluations = evaluations;
    tuned(ejk::Executor(o));
    runs.clear();
    events.take();
  }

  static std::map<int, std::string> statuses(const ejk::Entry& entry) {
    std::map<int, std::string> list;
    for (const auto& m : entry.candidates)
      list[static_cast<int>(m.config.find("units")->as_int())] = m.status;
    return list;
  }
  static ejk::Measurement& of(ejk::Entry& entry, int units) {
    return *std::ranges::find_if(entry.candidates, [&](const ejk::Measurement& m) {
      return m.config.find("units")->as_int() == units;
    });
  }

  fakes::TempDir dir;
  fakes::EventLog events;
  fakes::WarningLog warnings;
  std::vector<float> x = std::vector<float>(8, 1), y = std::vector<float>(8, 0);
};

}  // namespace tunings
