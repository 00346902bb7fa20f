// SPDX-License-Identifier: Apache-2.0
// What the files of the chain share: one call on its way, and what a selector remembers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ejk/detail/warm_table.h>
#include <ejk/error.h>
#include <ejk/names.h>
#include <ejk/selector.h>

#include "base/hidden.h"
#include "base/or_why.h"
#include "base/time.h"
#include "base/warn.h"
#include "choose/background.h"
#include "choose/drift.h"
#include "choose/key_watch.h"
#include "choose/recent_map.h"
#include "choose/same_numerics.h"
#include "choose/single_flight.h"
#include "platform/zygote.h"
#include "store/pins.h"

namespace ejk::detail {

// Why a stored tuning should go on; "" if there is nothing left to do.
std::string left_to_do(const Entry& entry, const Invocation& inv, const AnyKernel& kernel);
// Whether the kernel itself offers the config.
bool kernel_vouches(const AnyKernel& kernel, const Invocation& inv, const AnyConfig& config);
inline IfPresent replace_if(bool condition) {
  return condition ? IfPresent::replace : IfPresent::keep_better;
}
// By which a later call tells whether a kernel offers what it did; "" for large sets.
std::string digest_of_candidates(const CandidateSet& offered);
// What tells the warm words of choices under this policy from those of others.
inline uint64_t salt_of(const AutotunePolicy& policy) {
  return (policy.validate_backward ? 0x5851F42D4C957F2D : 0) ^
         (policy.numerics == Numerics::same ? 0x14057B7EF767814F : 0);
}

// What a selector does where the warm table does not help.
class EJK_HIDDEN Chain {
 public:
  // What makes the ranks of a run take the same configs.
  struct Launch {
    bool snapshot = false;  // the persistent tier is one
    PinMode pins = PinMode::off;
    std::shared_ptr<PersistentCache> store = {};  // which says where the pins are

    // Nothing is tuned, and no config is tried or adapted: that may end differently on each rank.
    bool must_agree() const { return snapshot || pins != PinMode::off; }
  };
  // Selector, options and table outlive it.
  Chain(const ConfigSelectorChain& selector, const SelectorOptions& options, WarmTable& warm,
        Launch launch);
  ~Chain();

  const Launch& launch() const { return launch_; }

  Choice choose(const Invocation& inv, const AnyKernel& kernel);
  std::pair<Choice, Entry> tune(const Invocation& inv, const AnyKernel& kernel,
                                std::shared_ptr<const CandidateSet> candidates);
  std::pair<Choice, Entry> resume(const Invocation& inv, const AnyKernel& kernel);
  std::optional<Entry> tuned(const Invocation& inv, const AnyKernel& kernel);
  Explanation explain(const Invocation& inv, const AnyKernel& kernel);
  size_t idle(double seconds);
  std::optional<Choice> reuse(const WarmEntry& entry);
  bool saw_run(WatchedCall& call, double seconds);
  void tune_again(const Invocation& inv, const AnyKernel& kernel);

 private:
  struct Call;
  struct State;
  class Checked;
  struct Found;
  // A step of the chain, by the tier that answers in it.
  struct Step {
    Origin tier;
    std::optional<Found> (Chain::*ask)(Call&);
  };
  // In the order in which a call asks them; the first answer wins.
  std::array<Step, 7> steps(const AutotunePolicy& policy) const;

  Choice answer(const Call& call, const Found& found);
  std::optional<Found> from_override(Call& call);
  std::optional<Found> from_overlay(Call& call);
  std::optional<Found> from_memory(Call& call);
  std::optional<Found> from_persistent(Call& call);
  std::optional<Found> from_pins(Call& call);
  std::optional<Found> from_unfinished(Call& call);
  std::optional<Found> from_autotune(Call& call);
  std::optional<Found> from_earlier_tuning(Call& call);
  std::optional<Found> from_heuristics(Call& call);
  std::optional<Found> from_heuristics_for_now(Call& call);
  [[noreturn]] void fail(Call& call);
  void refuse_to_tune(const Call& call) const;

  // What the persistent tier has for a call, and whether calls may go on with that tuning.
  struct Stored {
    Entry entry;
    std::string where;
    bool may_go_on;
  };
  std::optional<Stored> read_stored(const Call& call) const;
  std::nullopt_t pass_nothing_stored(Call& call) const;
  std::nullopt_t pass_unusable(Call& call, const Stored& stored, const std::string& why);
  std::nullopt_t pass_failure(Call& call, const Stored& stored);
  std::string go_on_with(Call& call, const Stored& stored, const Checked& config);
  Found serve_stored(Call& call, const Stored& stored, const Checked& config, std::string remark);

  std::shared_ptr<Pins> pins();
  std::optional<Found> own_choice(Call& call);
  std::optional<Found> as_pinned(Call& call, const Pins& run, const Value& pinned,
                                 std::optional<Found> own);

  std::optional<Checked> check_stored(const Call& call, const Entry& entry, std::string& remark);
  std::optional<std::string> failure_of_first_run(const Call& call, const Entry& entry,
                                                  const Checked& config);
  bool may_still_tune(const AutotunePolicy& policy, const EntryId& id) const;
  bool may_resume(const Call& call) const;
  static bool was_cut_for_good(const Call& call, const Entry& entry);
  bool may_replace(const Call& call) const;
  void store(const Entry& entry, IfPresent if_present) const;  // if tunings are stored at all
  bool is_tuned(const EntryId& id) const;                      // by this process
  bool is_in_flight(const EntryId& id) const;
  static std::nullopt_t would_tune(Call& call);
  std::optional<Found> tune_alone(Call& call);
  bool recall_unfinished(Call& call);
  bool is_stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  bool tunes_later(const AutotunePolicy& policy) const;
  bool is_new_to_background(const AutotunePolicy& policy, const EntryId& id) const;
  void tune_later(const Call& call);
  std::shared_ptr<const KeptCall> copies_of(const Call& call);
  Background::End tune_kept(LaterCall& later, const Background::Turn& turn);
  Background::End tune_kept(Call& call, LaterCall& later, const Background::Turn& turn);
  void take_over(Call& call, const Checked& config, Origin origin, const Value& before);
  void record_for_later(const Invocation& inv, const AnyKernel& kernel);
  void watch(const Call& call, const Entry& entry, const Checked& config, TunedBy by);
  // Where tunings of this selector keep what concerns this machine; "": nowhere.
  std::string local_directory() const;
  // `replaces`: whether the result takes the place of what is stored, although that is better.
  std::pair<Choice, Entry> tune_by_hand(Call& call,
                                        const std::function<bool(const Entry&)>& replaces);
  std::optional<Entry> run_tuner(Call& call);
  std::shared_ptr<const CandidateSet> candidates_to_tune(Call& call);
  std::optional<TuneResult> measure(Call& call,
                                    const std::shared_ptr<const CandidateSet>& candidates,
                                    const std::optional<AnyConfig>& heuristic);
  void keep_failure(Call& call, const TuneResult& result, const Entry& entry);
  void keep_winner(Call& call, const TuneResult& result, const Entry& entry);
  std::nullopt_t end_tuning(Call& call, const std::string& why);
  std::nullopt_t end_in_vain(Call& call, const std::string& why);
  TuneTask task_of(const Call& call, Trial& trial, std::shared_ptr<const CandidateSet> candidates,
                   std::optional<AnyConfig> heuristic, Journal* journal);
  void keep(const Call& call, const Checked& config, Origin origin);
  void publish(const Call& call, const Checked& config, Origin origin);
  void ask_again(const Call& call);
  void ask_again(const Call& call, const std::vector<uint64_t>& words);
  void emit(const Event& event);
  void warn_once(const std::string& subject, const std::string& message);
  // Once per problem and op.
  void warn_of(const Call& call, const std::string& problem, const std::string& message);
  void warn_of_failure(const Call& call, const std::string& reasons);

  AutotunePolicy policy() const { return selector_.policy(); }
  uint64_t generation() const { return options_.cache->generation(); }

  const ConfigSelectorChain& selector_;
  const SelectorOptions& options_;
  WarmTable& warm_;
  const Launch launch_;
  std::unique_ptr<State> state_;
  Drift drift_;
  Background background_;  // the last: its thread uses the others
};

// A config that may run its call. Only the checks of a Call make one, and nothing else reaches a
// kernel.
class Chain::Checked {
 public:
  const AnyConfig& config() const { return config_; }

 private:
  friend struct Call;
  explicit Checked(AnyConfig config) : config_(std::move(config)) {}
  AnyConfig config_;
};

// The answer of a tier.
struct Chain::Found {
  Checked config;
  Origin origin;
  std::optional<EventKind> event = {};  // that tells of it; none: there was one already
  std::optional<Origin> tier = {};      // of a cache_hit
  std::string detail = "has a config";
};

struct Chain::Call {
  enum class Purpose : uint8_t { choice, explanation };
  Call(const Chain& chain, const Invocation& invocation, const AnyKernel& any_kernel,
       Purpose purpose);
  // One that was made before, under that policy.
  Call(const Chain& chain, const LaterCall& later, const AnyKernel& any_kernel);

  // Of a tier that is asked again, its last word counts.
  void say(Origin tier, bool answers, std::string detail, Value config) {
    const auto before = std::ranges::find(tiers, name_of(tier), &Explanation::Tier::name);
    auto& said = before == tiers.end() ? tiers.emplace_back() : *before;
    said = {std::string(name_of(tier)), answers, std::move(detail), std::move(config)};
  }
  // Why a tier did not answer.
  std::nullopt_t pass(Origin tier, std::string why, Value config = {}) {
    say(tier, false, std::move(why), std::move(config));
    return std::nullopt;
  }

  // What to tell of this call. It refers to the texts given.
  Event event(EventKind kind, Value config = {}, std::string_view message = {}) const {
    return {name_of(kind),
            id.device,
            id.op,
            id.key,
            {},
            std::move(config),
            base::seconds_now() - started,
            message};
  }

  // What the kernel offers, or what is given instead, without what numerics excludes. nullptr: the
  // kernel offers nothing. Passes on what the hook throws.
  std::shared_ptr<const CandidateSet> offered() const;
  // "; numerics excludes ..." of what was offered last, or "".
  std::string what_is_excluded() const;
  // The candidates, of which one at least can run this call. Passes on what the hook throws.
  base::OrWhy<std::shared_ptr<const CandidateSet>> candidates() const;
  // The heuristic to race against, if there is one that can run this call; why not, if it threw.
  base::OrWhy<std::optional<AnyConfig>> control() const;
  // What is to be kept of a tuning.
  Entry entry_of(const TuneResult& result) const;
  // Adds what is known from the tuning that this one went on with.
  void add_unfinished(Entry& entry) const;

  // Why the config cannot run this call; empty if it can. An is_valid that throws says no.
  std::optional<std::string> problem_with(const AnyConfig& config) const;
  // As the kernel's own type, if its fields fit and is_valid accepts it.
  base::OrWhy<Checked> check(const AnyConfig& config) const;
  base::OrWhy<Checked> check(const Value& config) const;
  // The caller's own wish is not questioned.
  Checked override_cfg() const { return Checked(inv.override_cfg); }
  // By a thread that keeps the program from forking: it waits for no other, and forks with care.
  bool in_background() const {
    return turn != nullptr && turn->place == Background::Place::process;
  }

  AutotunePolicy policy;
  Invocation inv;
  const std::optional<SameNumerics> same;  // what the policy's numerics restrict the kernel to
  const AnyKernel& kernel;                 // so restricted
  const bool dry;                          // only explains: nothing is kept, sent or tuned
  bool keeps = !dry;                       // an answer is kept for later calls
  bool would_tune = false;                 // of a dry call
  bool stored_is_unusable = false;  // the persistent entry must make room, whatever its evidence
  std::shared_ptr<const CandidateSet> given;  // instead of the kernel's candidates
  std::optional<Entry> stored;                // what the store had when it was asked
  std::optional<Entry> unfinished;            // a stored tuning to go on with,
  std::optional<Checked> unfinished_config;   // what it came to so far,
  double resume_seconds = 0;                  // for so long; 0: for the whole budget
  AnyConfig winner;                           // of the tuning, as the tuner gave it
  TuningLease* lease = nullptr;               // while this call's tuning runs
  bool by_hand = false;                       // the caller asked for a tuning
  const Background::Turn* turn = nullptr;     // its tuning happens after it has returned
  bool gave_way = false;                      // and was broken off
  double started;
  uint64_t generation;  // of the cache when the call began
  EntryId id;
  std::vector<Explanation::Tier> tiers;
};

// What one selector remembers besides the cache.
struct Chain::State {
  State(size_t most_shapes, WarningSink sink, const AutotunePolicy& policy)
      : plan(policy.allow_autotune && policy.guard),
        tuned(most_shapes),
        tried_in_vain(most_shapes),
        first_runs(most_shapes),
        warn(std::move(sink)) {}

  TuningPlan plan;
  std::mutex mutex;
  SingleFlight flights{mutex};
  RecentMap<AnyConfig> tuned;                        // for forbid_reautotune
  RecentMap<std::string> tried_in_vain;              // keys whose tuning gave nothing, and why
  RecentMap<std::optional<std::string>> first_runs;  // of stored configs: what failed
  base::OnceWarnings warn;
  KeyWatch watch;
  std::mutex recording_mutex;
  std::shared_ptr<Recording> for_later;  // made when something is recorded, if calls are not
  std::shared_ptr<Pins> pins;            // once they were asked for
};

}  // namespace ejk::detail
