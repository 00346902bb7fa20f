// SPDX-License-Identifier: Apache-2.0
// Tuning recorded calls, by themselves or by the labels of a lowered computation.
#include <ejk/offline.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/directory.h"
#include "base/thrown.h"
#include "base/time.h"
#include "offline/shard.h"
#include "offline/stored_call.h"
#include "platform/here.h"
#include "record/reading.h"
#include "store/op_name.h"
#include "store/postgres/address.h"
#include "store/shared.h"

namespace ejk {

namespace {

std::string folder_of(const OfflineOptions& options) {
  std::string folder = options.folder.empty() ? default_recordings() : options.folder;
  if (folder.empty())
    throw Error(ErrorKind::invalid_argument,
                "there is no folder of recorded calls: set OfflineOptions::folder or "
                "EJKERNEL_OPS_RECORD_DIR");
  return folder;
}

// For people.
std::string shown(const std::string& folder) {
  return detail::postgres::is_database_url(folder) ? detail::postgres::without_password(folder)
                                                   : folder;
}

// While it lives, those who wait for the lease see that its holder works: a tuning in another
// process gives no signs of its own.
class SignsOfLife {
 public:
  explicit SignsOfLife(TuningLease* lease) {
    if (lease == nullptr) return;
    thread_ = std::jthread([lease](const std::stop_token& stop) {
      std::mutex mutex;
      std::condition_variable_any ended;
      std::unique_lock lock(mutex);
      while (!stop.stop_requested()) {
        lease->refresh();
        ended.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
      }
    });
  }

 private:
  std::jthread thread_;
};

// Pauses between looks at calls that others hold.
constexpr double shortest_pause = 0.05, longest_pause = 2;  // seconds
// In a plan that was gone through once, a look asks for so many leases that others hold: at its end
// every process waits for every other one.
constexpr size_t most_denied = 4;

// Of two entries of one call.
bool is_same_tuning(const Entry& a, const Entry& b) {
  return a.evidence.time == b.evidence.time &&
         a.evidence.tuning_seconds == b.evidence.tuning_seconds;
}

// What is stored under the keys of recorded calls says nothing about choices under such a policy.
bool has_own_keys(const AutotunePolicy& policy) {
  return policy.validate_backward || policy.numerics == Numerics::same;
}

// What is stored for a plan that others follow, too. A directory is looked at call by call. Of a
// database all choices are read at once, and again when questions about single calls found as much
// that was not known as that costs.
class Progress {
 public:
  // `choices`: what was stored for these devices when the plan was made.
  Progress(PersistentCache& store, std::set<std::string> devices,
           std::unique_ptr<PersistentCache> choices)
      : store_(store),
        database_(detail::database_of(store)),
        devices_(std::move(devices)),
        choices_(std::move(choices)) {
    count();
  }

  std::optional<StoredCall> known(const RecordedCall& call) {
    return stored_for(database_ != nullptr ? *choices_ : store_, call);
  }
  std::optional<StoredCall> ask(const RecordedCall& call) { return stored_for(store_, call); }
  // An answer that was not known, so that the lease was taken in vain.
  void missed() {
    constexpr size_t questions = 3;  // lease, ask, release
    in_vain_ += questions;
    if (database_ == nullptr || in_vain_ < cost_ || database_->far().is_away()) return;
    choices_ = choices_of(store_, devices_);
    count();
  }

 private:
  void count() {
    constexpr size_t choices_per_question = 500;
    cost_ = 1, in_vain_ = 0;
    if (database_ == nullptr) return;
    size_t choices = 0;
    choices_->for_each(
        "", [&](const Entry&) { return ++choices > 0; }, Detail::choice);
    cost_ += choices / choices_per_question;
  }

  PersistentCache& store_;
  detail::SharedStore* const database_;
  const std::set<std::string> devices_;
  std::unique_ptr<PersistentCache> choices_;
  size_t cost_ = 1, in_vain_ = 0;  // questions
};

// One run through a list of calls.
class Tunings {
 public:
  Tunings(ConfigSelectorChain& selector, const OfflineOptions& options)
      : selector_(selector), options_(options), started_(base::seconds_now()) {
    result.device = options.device.empty() ? cpu_device().fingerprint : options.device;
  }

  OfflineResult result;

  void skip(std::string op, std::string key, std::string why) {
    result.skipped.push_back({std::move(op), std::move(key), std::move(why)});
  }

  void tune(const RecordedCall& call, size_t number, size_t of) {
    if (!may_begin(call) || (!options_.retune && is_tuned(call))) return;
    tell(call, std::to_string(number) + " of " + std::to_string(of));
    measure(call);
  }

  // Together with other processes. `choices`: what was stored when the plan was made.
  void share(const std::vector<PlannedCall>& plan, std::unique_ptr<PersistentCache> choices) {
    std::vector<std::optional<StoredCall>> before;
    std::set<std::string> devices;
    for (const PlannedCall& planned : plan) {
      before.push_back(stored_for(*choices, planned.call));
      devices.insert(planned.call.id.device);
    }
    Progress progress(*selector_.persistent(), std::move(devices), std::move(choices));
    std::vector<size_t> open =
        detail::order_in_plan(plan.size(), options_.shard.value_or(detail::random_shard()));
    const double patience = options_.held_seconds > 0 ? options_.held_seconds
                                                      : 60 + 3 * selector_.policy().budget_seconds;
    double pause = shortest_pause, last_progress = base::seconds_now();
    for (size_t most_held = open.size(); !open.empty(); most_held = most_denied) {
      const bool stuck = base::seconds_now() - last_progress > patience;
      std::vector<size_t> held;  // by others
      size_t looked = 0;
      for (; looked < open.size() && held.size() < most_held; ++looked) {
        const size_t i = open[looked], number = plan.size() - open.size() + looked - held.size();
        if (!take(plan[i].call, before[i], progress, stuck, number + 1, plan.size()))
          held.push_back(i);
      }
      // What was not looked at comes first the next time.
      open.erase(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(looked));
      open.insert(open.end(), held.begin(), held.end());
      if (looked > held.size()) {
        pause = shortest_pause, last_progress = base::seconds_now();
        continue;
      }
      const size_t others = open.size() - 1;
      tell(plan[open.front()].call,
           "others tune it" + (others > 0 ? " and " + std::to_string(others) + " more" : "") +
               "; waiting for them");
      wait(pause);
      pause = std::min(2 * pause, longest_pause);
    }
  }

  void keep(Entry entry) { kept_.push_back(std::move(entry)); }

  OfflineResult finish(size_t offered, const std::string& why_none_offered) {
    result.elsewhere = elsewhere_.size();
    result.already = elsewhere_.size() + kept_.size();
    if (result.entries.empty()) {
      result.note = "nothing was tuned: ";
      if (offered == 0) result.note += why_none_offered;
      if (result.already > 0) result.note += count(result.already, "tuned already");
      if (result.already > 0 && !result.skipped.empty()) result.note += ", ";
      if (!result.skipped.empty())
        result.note += count(result.skipped.size(), "left out") + ", the first because " +
                       result.skipped.front().why;
    }
    for (Entry& entry : elsewhere_) result.entries.push_back(std::move(entry));
    for (Entry& entry : kept_) result.entries.push_back(std::move(entry));
    return std::move(result);
  }

 private:
  // False if it cannot, which is noted.
  bool may_begin(const RecordedCall& call) {
    std::string why;
    if (seconds_left() <= 0) why = "the budget was spent before its turn";
    else if (stopped()) why = "it was stopped before its turn";
    else if (!options_.tune_call && detail::device_here(call.id.device) == nullptr)
      why = "it was recorded on another device, " + call.id.device;
    if (!why.empty()) skip(call.id.op, call.id.key, why);
    return why.empty();
  }

  void measure(const RecordedCall& call) {
    try {
      const double budget = std::min(selector_.policy().budget_seconds, seconds_left());
      Entry entry = options_.tune_call ? options_.tune_call(call, budget) : tune_here(call, budget);
      (was_tuned_before(entry) ? kept_ : result.entries).push_back(std::move(entry));
    } catch (...) {
      skip(call.id.op, call.id.key, base::what_was_thrown());
    }
  }

  // Only who makes the call knows its key under such a policy.
  bool was_tuned_before(const Entry& entry) const {
    return !options_.retune && has_own_keys(selector_.policy()) && !entry.evidence.time.empty() &&
           entry.evidence.time < started_utc_;
  }

  // False if another process holds the call; a stuck one is not waited for.
  bool take(const RecordedCall& call, const std::optional<StoredCall>& before, Progress& progress,
            bool stuck, size_t number, size_t of) {
    if (!may_begin(call) || is_settled_by_others(call, progress.known(call), before)) return true;
    const auto lease = selector_.persistent()->lease(call.id, 0);
    if (!lease && !stuck) return false;
    // Who held the lease before may have stored it meanwhile.
    if (is_settled_by_others(call, progress.ask(call), before)) return progress.missed(), true;
    const SignsOfLife signs(lease.get());
    tell(call, std::to_string(number) + " of " + std::to_string(of));
    measure(call);
    return true;
  }

  // One that was cut short since the plan was made is not tuned again by each process in turn.
  bool is_settled_by_others(const RecordedCall& call, std::optional<StoredCall> now,
                            const std::optional<StoredCall>& before) {
    if (!now || now->for_any_outputs || has_own_keys(selector_.policy())) return false;
    if (now->entry.outcome == Outcome::failed) {
      skip(call.id.op, call.id.key, "another process rejected every candidate");
      return true;
    }
    const bool is_as_before =
        before && !before->for_any_outputs && is_same_tuning(now->entry, before->entry);
    if (is_as_before && !now->is_tuned()) return false;
    elsewhere_.push_back(std::move(now->entry));
    return true;
  }

  void wait(double seconds) const {
    const double until = base::seconds_now() + std::min(seconds, std::max(0., seconds_left()));
    while (!stopped() && base::seconds_now() < until)
      std::this_thread::sleep_for(base::duration_of(std::min(0.1, until - base::seconds_now())));
  }

  Entry tune_here(const RecordedCall& call, double budget_seconds) {
    const auto made = rebuild_call(call);
    const auto scope = policy_override(selector_, {.budget_seconds = budget_seconds});
    if (options_.retune) return selector_.tune(made->invocation(), made->kernel()).second;
    if (has_own_keys(selector_.policy()))
      if (auto tuned = selector_.tuned(made->invocation(), made->kernel()))
        return std::move(*tuned);
    return selector_.resume(made->invocation(), made->kernel()).second;
  }
  double seconds_left() const {
    if (options_.budget_seconds <= 0) return std::numeric_limits<double>::infinity();
    return options_.budget_seconds - (base::seconds_now() - started_);
  }
  static std::string count(size_t n, const std::string& what) {
    return std::to_string(n) + (n == 1 ? " call is " : " calls are ") + what;
  }
  bool stopped() const { return StopOnInterrupt::requested().load(); }

  // What is stored, and was measured to its end, is used as it is.
  bool is_tuned(const RecordedCall& call) {
    PersistentCache* store = selector_.persistent();
    if (store == nullptr || has_own_keys(selector_.policy())) return false;
    auto stored = stored_for(*store, call);
    if (!stored || !stored->is_tuned()) return false;
    keep(std::move(stored->entry));
    return true;
  }

  void tell(const RecordedCall& call, const std::string& message) {
    if (!options_.on_progress) return;
    TuneProgress progress;
    progress.kind = TuneProgress::Kind::candidate;
    progress.op = call.id.op, progress.key = call.id.key, progress.message = message;
    progress.elapsed = base::seconds_now() - started_;
    if (options_.budget_seconds > 0) progress.remaining = std::max(0., seconds_left());
    options_.on_progress(progress);
  }

  ConfigSelectorChain& selector_;
  const OfflineOptions& options_;
  double started_;
  std::string started_utc_ = base::utc_now();
  std::vector<Entry> kept_;       // tuned before
  std::vector<Entry> elsewhere_;  // stored by others while this one shared
};

// Whether calls of a device are asked for: of the one that is named, else of any that is here.
bool is_asked_for(const OfflineOptions& options, const std::string& device) {
  return options.device.empty() ? detail::device_here(device) != nullptr : device == options.device;
}

RecordedCalls read_asked_for(const std::string& folder, const PersistentCache* store,
                             const OfflineOptions& options) {
  return detail::read_recorded(
      folder, store, {}, [&](const std::string& device) { return is_asked_for(options, device); });
}

// Throws if these options cannot be followed with that store.
void check_sharing(const OfflineOptions& options, PersistentCache* store) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorKind::invalid_argument, "[autotune_recorded] " + what);
  };
  if (options.share && options.retune)
    refuse(
        "got share with retune; expected one of them, because each process would tune every "
        "call again; erase the entries first, or use shards without share");
  if (options.shard && !options.share && options.shard->index >= options.shard->count)
    refuse("got shard " + std::to_string(options.shard->index) + "/" +
           std::to_string(options.shard->count) + "; expected an index below the count");
  if (!options.share) return;
  const std::string cure =
      "; use another store, or tune disjoint shards, each into its own store, and merge them";
  if (store == nullptr || store->writable_layer() == nullptr)
    refuse("got share without a store that can be written; expected one that all processes have" +
           cure);
  // A call that no process can hold.
  if (!store->lease({"", "share", base::random_digits(), ""}, 0))
    refuse("got share with the store " + store->writable_layer()->where() +
           ", which cannot be locked; expected a database, or a file system with locks" + cure);
}

std::string why_no_record(const RecordedCalls& recorded, const OfflineOptions& options,
                          const Label& label, const std::string& folder) {
  if (recorded.empty())
    return "nothing is recorded in " + folder +
           " (run the program once with EJKERNEL_OPS_RECORD=1)";
  for (const auto& [device, ops] : recorded)
    if (is_asked_for(options, device) && ops.contains(label.op))
      return "the op is recorded with other arguments only";
  for (const auto& [device, ops] : recorded)
    if (const auto op = ops.find(label.op); op != ops.end() && op->second.contains(label.key))
      return "it is recorded on another device, " + device;
  return "it was never recorded in " + folder;
}

}  // namespace

Invocations get_invocations(const std::string& folder, const std::string& device,
                            std::map<std::string, std::string>* why_not) {
  Invocations out;
  RecordedCalls recorded = detail::read_recorded(
      folder, nullptr, {}, [&](const std::string& each) { return each == device; });
  for (const auto& [op, calls] : recorded[device])
    for (const auto& [key, call] : calls) try {
        out[op][key] = rebuild_call(call);
      } catch (const Error& error) {
        out[op].erase(key);
        if (out[op].empty()) out.erase(op);
        if (why_not != nullptr) why_not->emplace(op + ":" + key, error.what());
      }
  return out;
}

OfflineResult autotune_recorded(ConfigSelectorChain& selector, const OfflineOptions& options) {
  const std::string folder = folder_of(options);
  check_sharing(options, selector.persistent());
  Tunings tunings(selector, options);
  RecordedCalls recorded = read_asked_for(folder, selector.persistent(), options);
  std::vector<RecordedCall> calls;
  size_t left_out = 0, of_other_shards = 0;
  for (auto& [device, ops] : recorded)
    for (auto& [op, by_key] : ops)
      for (auto& [key, call] : by_key) {
        if (!detail::op_matches(op, options.ops)) ++left_out;
        else if (options.shard && !options.share && !detail::is_in_shard(call.id, *options.shard))
          ++of_other_shards;
        else calls.push_back(std::move(call));
      }
  const size_t offered = calls.size();
  PersistentCache* const store = options.retune ? nullptr : selector.persistent();
  auto choices = store == nullptr ? nullptr : choices_of(*store, devices_of(calls));
  TuningPlan plan = plan_with_choices(std::move(calls),
                                      has_own_keys(selector.policy()) ? nullptr : choices.get());
  if (options.share) tunings.share(plan.to_tune, std::move(choices));
  else
    for (size_t i = 0; i < plan.to_tune.size(); ++i)
      tunings.tune(plan.to_tune[i].call, i + 1, plan.to_tune.size());
  for (Entry& entry : plan.tuned) tunings.keep(std::move(entry));
  for (EntryId& id : plan.in_vain)
    tunings.skip(std::move(id.op), std::move(id.key), "an earlier tuning rejected every candidate");
  return tunings.finish(
      offered,
      of_other_shards > 0
          ? "none of the " + std::to_string(of_other_shards) + " recorded calls belongs to shard " +
                std::to_string(options.shard->index) + "/" + std::to_string(options.shard->count)
      : left_out > 0 ? "none of the " + std::to_string(left_out) + " recorded calls in " +
                           shown(folder) + " is of the ops asked for"
                     : "nothing is recorded for " + tunings.result.device + " in " + shown(folder) +
                           " (run the program once with EJKERNEL_OPS_RECORD=1)");
}

OfflineResult autotune_lowered(ConfigSelectorChain& selector, std::string_view lowered,
                               const OfflineOptions& options) {
  return autotune_labels(selector, find_labels(lowered, options.labels), options);
}

OfflineResult autotune_labels(ConfigSelectorChain& selector, const FoundLabels& found,
                              const OfflineOptions& options) {
  const std::string folder = folder_of(options);
  Tunings tunings(selector, options);
  const RecordedCalls recorded = read_asked_for(folder, selector.persistent(), options);
  std::optional<RecordedCalls> everywhere;  // of all devices, for the reason why there is no record
  std::vector<const RecordedCall*> calls;
  std::set<std::string> seen;  // labels that differ in their prefix are one call
  for (const Label& label : found.labels) {
    if (!detail::op_matches(label.op, options.ops) ||
        !seen.insert(label.op + ":" + label.key).second)
      continue;
    if (label.truncated) {
      tunings.skip(label.op, label.key,
                   std::string("its label is truncated (") +
                       (cut_by_xla(label) ? "XLA cuts names at '@'" : "the file was cut off") +
                       "), so its key is not known");
      continue;
    }
    const size_t before = calls.size();
    for (const auto& [device, ops] : recorded)
      if (const auto op = ops.find(label.op); op != ops.end())
        if (const auto key = op->second.find(label.key); key != op->second.end())
          calls.push_back(&key->second);
    if (calls.size() > before) continue;
    if (!everywhere) everywhere = detail::read_recorded(folder, selector.persistent(), {});
    tunings.skip(label.op, label.key, why_no_record(*everywhere, options, label, shown(folder)));
  }
  const size_t offered = calls.size() + tunings.result.skipped.size();
  for (size_t i = 0; i < calls.size(); ++i) tunings.tune(*calls[i], i + 1, calls.size());
  return tunings.finish(offered, found.labels.empty()
                                     ? "the lowered computation (" + found.format +
                                           ") holds no label: its calls were not labelled, or its "
                                           "form does not keep labels"
                                     : "none of its labels is of the ops asked for");
}

std::string OfflineResult::text() const {
  std::string out;
  char line[64];
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    std::snprintf(line, sizeof line, "%.3gx", entry.evidence.speedup);
    out += "[" + entry.id.op + "] " + entry.id.key + ": " + stable_json(entry.config) + ", " +
           (entry.evidence.speedup > 0 ? std::string(line) + " the heuristic's speed, " : "") +
           (i + already < entries.size()               ? std::string(outcome_name(entry.outcome))
            : i + already < entries.size() + elsewhere ? "tuned elsewhere"
                                                       : "tuned before") +
           "\n";
  }
  for (const Skipped& s : skipped)
    out += "[" + s.op + "] " + s.key + ": not tuned: " + s.why + "\n";
  if (skipped.empty() && !note.empty()) out += note + "\n";  // else it was just said
  return out;
}

}  // namespace ejk
