// SPDX-License-Identifier: Apache-2.0
// What the files of the chain share: one call on its way, and what a selector remembers.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ejk/detail/recent_map.h>
#include <ejk/error.h>
#include <ejk/selector.h>

#include "base/time.h"
#include "base/warn.h"
#include "choose/key_watch.h"

namespace ejk {

// All of an id in one text, for maps.
std::string text_of(const EntryId& id);
// Why a stored tuning should go on; "" if there is nothing left to do.
std::string left_to_do(const Entry& entry, const Invocation& inv, const AnyKernel& kernel);
// Marks the strategy of a tuning over configs that were given by hand.
inline constexpr std::string_view among_given = " among given configs";
inline constexpr uint64_t backward_salt = 0x5851F42D4C957F2D;

// A config that may run its call. Only the checks of a Call make one, and nothing else reaches a
// kernel.
class ConfigSelectorChain::Checked {
 public:
  const AnyConfig& config() const { return config_; }

 private:
  friend struct Call;
  explicit Checked(AnyConfig config) : config_(std::move(config)) {}
  AnyConfig config_;
};

// The answer of a tier.
struct ConfigSelectorChain::Found {
  Checked config;
  Origin origin;
  std::string_view event = {};  // that tells of it; "": there was one already
  std::string_view tier = {};   // of a cache_hit
  std::string detail = "has a config";
};

struct ConfigSelectorChain::Call {
  Call(const ConfigSelectorChain& chain, const Invocation& invocation, const AnyKernel& any_kernel,
       bool is_dry);

  // Why a tier did not answer. Of one that is asked again, its last word counts.
  std::nullopt_t pass(const std::string& tier, std::string why, Value config = {}) {
    Explanation::Tier said{tier, false, std::move(why), std::move(config)};
    const auto before = std::ranges::find(tiers, tier, &Explanation::Tier::name);
    if (before == tiers.end()) tiers.push_back(std::move(said));
    else *before = std::move(said);
    return std::nullopt;
  }

  // What to tell of this call. It refers to the texts given.
  Event event(std::string_view kind, Value config = {}, std::string_view message = {}) const {
    return {kind,   id.device, id.op, id.key, {}, std::move(config), base::seconds_now() - started,
            message};
  }

  // The candidates, of which one at least can run this call; nullptr, with `why`, if none can.
  std::shared_ptr<const CandidateSet> candidates(std::string& why) const;
  // The heuristic to race against; empty, with `why` if it threw.
  std::optional<AnyConfig> control(std::string& why) const;
  // What is to be kept of a tuning.
  Entry entry_of(const TuneResult& result) const;
  // Adds what is known from the tuning that this one went on with.
  void add_unfinished(Entry& entry) const;

  // Why the config cannot run this call; empty if it can. An is_valid that throws says no.
  std::optional<std::string> problem_with(const AnyConfig& config) const;
  // As the kernel's own type, if its fields fit and is_valid accepts it; else with the reason.
  std::optional<Checked> check(const AnyConfig& config, std::string& why) const;
  std::optional<Checked> check(const Value& config, std::string& why) const;
  // The caller's own wish is not questioned.
  Checked override_cfg() const { return Checked(inv.override_cfg); }

  Invocation inv;
  const AnyKernel& kernel;
  AutotunePolicy policy;
  const bool dry;                   // only explains: nothing is kept, sent or tuned
  bool would_tune = false;          // of a dry call
  bool stored_is_unusable = false;  // the persistent entry must make room, whatever its evidence
  std::shared_ptr<const CandidateSet> given;  // instead of the kernel's candidates
  std::optional<Entry> stored;                // what the store had when it was asked
  std::optional<Entry> unfinished;            // a stored tuning to go on with,
  std::optional<Checked> unfinished_config;   // what it came to so far,
  double resume_seconds = 0;                  // for so long; 0: for the whole budget
  AnyConfig winner;                           // of the tuning, as the tuner gave it
  TuningLease* lease = nullptr;               // while this call's tuning runs
  bool by_hand = false;                       // nobody waits who did not ask for a tuning
  double started;
  uint64_t generation;  // of the cache when the call began
  EntryId id;
  std::vector<Explanation::Tier> tiers;
};

// What one selector remembers besides the cache.
struct ConfigSelectorChain::State {
  State(size_t most_shapes, WarningSink sink)
      : tuned(most_shapes),
        tried_in_vain(most_shapes),
        first_runs(most_shapes),
        warn(std::move(sink)) {}

  std::mutex mutex;
  std::condition_variable flight_ended;
  std::map<std::string, std::thread::id> in_flight;  // what is tuned or tried, and by whom
  std::map<std::thread::id, std::string> waiting;    // threads and the key each waits for
  detail::RecentMap<AnyConfig> tuned;                // for forbid_reautotune
  detail::RecentMap<std::string> tried_in_vain;      // keys whose tuning gave nothing, and why
  detail::RecentMap<std::optional<std::string>> first_runs;  // of stored configs: what failed
  base::OnceWarnings warn;
  KeyWatch watch;

  // Something that one thread does for all, until the end of this. Unlocks the mutex.
  class Flight {
   public:
    Flight(State& state, std::string what, std::unique_lock<std::mutex>& lock);
    ~Flight();
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;

   private:
    State& state_;
    const std::string what_;
  };
  // Whether the calling thread does this, or something that its thread waits for: waiting would
  // never end. With the mutex held.
  bool waits_for_itself(const std::string& flight) const;
  // Until some flight has ended.
  void wait_for(const std::string& flight, std::unique_lock<std::mutex>& lock);
};

}  // namespace ejk
