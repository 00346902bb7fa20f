// SPDX-License-Identifier: Apache-2.0
// Stand-ins for the tests: a tuner that decides by itself, a kernel that counts, a fresh folder.
#pragma once

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/ejk.h>

namespace fakes {

// A folder of its own, gone with the object.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "ejk_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Picks candidates[pick], without measuring, and counts how often it was asked.
class FakeTuner : public ejk::Tuner {
 public:
  ejk::TuneResult tune(const ejk::TuneTask& task) override {
    ++asked;
    if (before) before(task);
    ejk::TuneResult result;
    result.evidence.samples = 10;
    for (uint64_t i = 0; i < task.candidates->size(); ++i) {
      ejk::Measurement m;
      m.config = task.candidates->config(i).to_value();
      if (outcome == ejk::Outcome::failed)
        m.status = "rejected", m.why = "because the test says so";
      result.candidates.push_back(m);
    }
    result.outcome = outcome;
    if (outcome != ejk::Outcome::failed) result.winner = pick;
    return result;
  }
  std::atomic<int> asked{0};
  size_t pick = 1;
  ejk::Outcome outcome = ejk::Outcome::tuned;
  std::function<void(const ejk::TuneTask&)> before;
};

// Has nothing, keeps nothing and gives no lease; classes that derive from it do some of that.
class EmptyStore : public ejk::Store {
 public:
  std::optional<ejk::Entry> get(const ejk::EntryId&, ejk::Detail, const ejk::Value*) override {
    return std::nullopt;
  }
  bool put(const ejk::Entry&, ejk::IfPresent) override { return true; }
  bool erase(const ejk::EntryId&) override { return false; }
  void for_each(std::string_view, const std::function<bool(const ejk::Entry&)>&,
                ejk::Detail) override {}
  std::unique_ptr<ejk::TuningLease> lease(const ejk::EntryId&, double) override { return nullptr; }
  std::string where() const override { return "nowhere"; }
  bool writable() const override { return true; }
};

// Hands on to a directory.
class StoreBefore : public ejk::Store {
 public:
  explicit StoreBefore(const std::string& path) : directory(path) {}

  std::optional<ejk::Entry> get(const ejk::EntryId& id, ejk::Detail detail,
                                const ejk::Value* environment) override {
    return directory.get(id, detail, environment);
  }
  bool put(const ejk::Entry& entry, ejk::IfPresent if_present) override {
    return directory.put(entry, if_present);
  }
  bool erase(const ejk::EntryId& id) override { return directory.erase(id); }
  void for_each(std::string_view op, const std::function<bool(const ejk::Entry&)>& visit,
                ejk::Detail detail) override {
    directory.for_each(op, visit, detail);
  }
  std::unique_ptr<ejk::TuningLease> lease(const ejk::EntryId& id, double patience) override {
    return directory.lease(id, patience);
  }
  std::string where() const override { return directory.where(); }
  bool writable() const override { return true; }

  ejk::DirectoryStore directory;
};

inline std::shared_ptr<ejk::PersistentCache> cache_of(std::shared_ptr<ejk::Store> store) {
  return std::make_shared<ejk::PersistentCache>(
      std::vector<std::shared_ptr<ejk::Store>>{std::move(store)});
}

// Events, kept as text: "cache_hit/memory".
class EventLog {
 public:
  ejk::EventSink sink() {
    return [this](const ejk::Event& e) {
      std::lock_guard lock(mutex_);
      kinds_.push_back(std::string(e.kind) + (e.tier.empty() ? "" : "/" + std::string(e.tier)));
    };
  }
  std::vector<std::string> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(kinds_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> kinds_;
};

// But not that a call waits for its tuning: that depends on how busy the machine is.
class WarningLog {
 public:
  ejk::WarningSink sink() {
    return [this](const std::string& text) {
      if (text.find("a call waits for its tuning") != text.npos) return;
      std::lock_guard lock(mutex_);
      texts_.push_back(text);
    };
  }
  std::vector<std::string> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

// y = block, so that the config a call ran with can be seen.
struct Show {
  static constexpr std::string_view op_id = "show", version = "3";
  struct Config {
    int block = 0;
  };
  void run(const Config& c, std::span<const float>, ejk::Out<std::span<float>> y) const {
    for (float& v : *y) v = static_cast<float>(c.block);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {7}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{1}, {2}, {3}}; }
};

struct Setup {
  std::shared_ptr<FakeTuner> tuner = std::make_shared<FakeTuner>();
  EventLog events;
  WarningLog warnings;

  ejk::SelectorOptions options() {
    ejk::SelectorOptions o;
    o.policy = ejk::AutotunePolicy{};
    o.tuner = tuner;
    o.on_event = events.sink();
    o.on_warning = warnings.sink();
    return o;
  }
  ejk::SelectorOptions options(const std::string& store) {
    ejk::SelectorOptions o = options();
    ejk::DirectoryStore::Options directory;
    directory.on_warning = warnings.sink();
    std::vector<std::shared_ptr<ejk::Store>> layers{
        std::make_shared<ejk::DirectoryStore>(store, directory)};
    o.persistent = std::make_shared<ejk::PersistentCache>(std::move(layers));
    return o;
  }
};

}  // namespace fakes
