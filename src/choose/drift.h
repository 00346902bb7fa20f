// SPDX-License-Identifier: Apache-2.0
// Whether calls still take as long as the evidence of their config says.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <ejk/any_config.h>
#include <ejk/store.h>

#include "base/hidden.h"
#include "choose/recent_map.h"

namespace ejk::detail {

// Which process measured what a call is compared with.
enum class TunedBy : uint8_t { this_process, another };

// When calls are too slow. Other programs and cold caches only add time, and a program finds its
// arrays in colder caches than a tuning does, which repeats its runs. Therefore:
//   1. Calls are judged in windows of 9 timed runs, by the second shortest of them.
//   2. The margin is a quarter or 3 times the noise of the tuning, whichever is more.
//   3. The first window tells what is usual in this program. It may take 3 times the evidence's
//      upper bound, and the margin: that much cold caches may add. Evidence that was measured with
//      cold caches allows nothing for them. Evidence of this very process is not doubted.
//   4. A later window is slow if it takes more than the evidence's upper bound and more than the
//      usual, by more than the margin.
//   5. A slow window says nothing if the machine was busy, or may have been.
//   6. Two slow windows in a row are a drift.
// Not thread-safe.
class DriftRule {
 public:
  DriftRule(const Evidence& evidence, TunedBy by);

  // What calls take now, if that is a drift. `is_busy` is asked at the end of a slow window only,
  // about twice as long as that took: the window before it may have ended a while before.
  std::optional<double> add(double seconds, const std::function<bool(double)>& is_busy);
  // It is not: calls take that long in this program.
  void accept(double seconds);
  // By how much a time must exceed another one to be more than noise.
  double tolerance() const { return tolerance_; }

 private:
  double limit() const;

  const double upper_, tolerance_, first_limit_;
  std::array<double, 9> window_{};
  size_t filled_ = 0;
  double began_ = 0;  // the window, on the wall's clock
  double usual_ = 0;  // 0: not known yet
  int slow_windows_ = 0;
};

// A call some of whose warm runs are timed, with what it is compared with.
struct EJK_HIDDEN WatchedCall {
  WatchedCall(const Entry& entry, AnyConfig checked, TunedBy by);

  const EntryId id;
  const Value environment;
  const AnyConfig config;
  const double evidence_seconds;
  const std::string tuned;  // Evidence::time

  std::mutex mutex;  // for what follows
  DriftRule rule;
  bool drifted = false;  // and that was told
};

// The watched calls of one selector. Thread-safe.
class Drift {
 public:
  // `is_busy`: empty: as the machine is.
  Drift(std::function<bool()> is_busy, size_t max_calls);

  // A call that takes less cannot be told from the noise of a single run.
  static constexpr double min_seconds = 5e-6;

  // The runs of that id are compared with this from now on; nullptr: with nothing.
  void expect(const std::string& id, std::shared_ptr<WatchedCall> call);
  // nullptr: runs with this config are compared with nothing.
  std::shared_ptr<WatchedCall> find(const std::string& id, const AnyConfig& config);
  // What calls take now, once for each drift. Does not wait for other threads, whose run counts
  // instead.
  std::optional<double> add_run(WatchedCall& call, double seconds);

 private:
  bool is_busy(double seconds);

  std::mutex mutex_;
  RecentMap<std::shared_ptr<WatchedCall>> calls_;
  std::mutex busy_mutex_;
  std::function<bool(double)> is_busy_;
};

}  // namespace ejk::detail
