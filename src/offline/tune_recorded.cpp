// SPDX-License-Identifier: Apache-2.0
// Tuning recorded calls, by themselves or by the labels of a lowered computation.
#include <ejk/offline.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

#include "base/time.h"
#include "offline/stored_call.h"
#include "platform/here.h"
#include "store/op_name.h"

namespace ejk {

namespace {

std::string folder_of(const OfflineOptions& options) {
  const std::string folder = options.folder.empty() ? default_recording_path() : options.folder;
  if (folder.empty())
    throw Error(ErrorKind::invalid_argument,
                "there is no folder of recorded calls: set OfflineOptions::folder or "
                "EJKERNEL_OPS_RECORD_DIR");
  return folder;
}

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
    const double left = seconds_left();
    if (left <= 0) return skip(call.id.op, call.id.key, "the budget was spent before its turn");
    if (stopped()) return skip(call.id.op, call.id.key, "it was stopped before its turn");
    if (!options_.tune_call && detail::device_here(call.id.device) == nullptr)
      return skip(call.id.op, call.id.key, "it was recorded on another device, " + call.id.device);
    if (!options_.retune && is_tuned(call)) return;
    tell(call, std::to_string(number) + " of " + std::to_string(of));
    try {
      const double budget = std::min(selector_.policy().budget_seconds, left);
      result.entries.push_back(options_.tune_call ? options_.tune_call(call, budget)
                                                  : tune_here(call, budget));
    } catch (const std::exception& error) {
      skip(call.id.op, call.id.key, error.what());
    }
  }

  void keep(Entry entry) { kept_.push_back(std::move(entry)); }

  OfflineResult finish(size_t offered, const std::string& why_none_offered) {
    if (result.entries.empty()) {
      result.note = "nothing was tuned: ";
      if (offered == 0) result.note += why_none_offered;
      if (!kept_.empty()) result.note += count(kept_.size(), "tuned already");
      if (!kept_.empty() && !result.skipped.empty()) result.note += ", ";
      if (!result.skipped.empty())
        result.note += count(result.skipped.size(), "left out") + ", the first because " +
                       result.skipped.front().why;
    }
    result.already = kept_.size();
    for (Entry& entry : kept_) result.entries.push_back(std::move(entry));
    return std::move(result);
  }

 private:
  Entry tune_here(const RecordedCall& call, double budget_seconds) {
    const auto made = rebuild_call(call);
    const auto scope = policy_override(selector_, {.budget_seconds = budget_seconds});
    if (options_.retune) return selector_.tune(made->invocation(), made->kernel()).second;
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
    if (store == nullptr || selector_.policy().validate_backward) return false;
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
  std::vector<Entry> kept_;  // tuned before
};

// Whether calls of a device are asked for: of the one that is named, else of any that is here.
bool is_asked_for(const OfflineOptions& options, const std::string& device) {
  return options.device.empty() ? detail::device_here(device) != nullptr : device == options.device;
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
  RecordedCalls recorded = read_recorded(folder);
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
  Tunings tunings(selector, options);
  RecordedCalls recorded = read_recorded(folder);
  std::vector<RecordedCall> calls;
  size_t left_out = 0;
  for (auto& [device, ops] : recorded) {
    if (!is_asked_for(options, device)) continue;
    for (auto& [op, by_key] : ops)
      for (auto& [key, call] : by_key) {
        if (detail::op_matches(op, options.ops)) calls.push_back(std::move(call));
        else ++left_out;
      }
  }
  const size_t offered = calls.size();
  PersistentCache* const store = options.retune ? nullptr : selector.persistent();
  const auto choices = store == nullptr ? nullptr : choices_of(*store);
  TuningPlan plan = plan_with_choices(std::move(calls), choices.get());
  for (size_t i = 0; i < plan.to_tune.size(); ++i)
    tunings.tune(plan.to_tune[i].call, i + 1, plan.to_tune.size());
  for (Entry& entry : plan.tuned) tunings.keep(std::move(entry));
  for (EntryId& id : plan.in_vain)
    tunings.skip(std::move(id.op), std::move(id.key), "an earlier tuning rejected every candidate");
  return tunings.finish(
      offered, left_out > 0 ? "none of the " + std::to_string(left_out) + " recorded calls in " +
                                  folder + " is of the ops asked for"
                            : "nothing is recorded for " + tunings.result.device + " in " + folder +
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
  const RecordedCalls recorded = read_recorded(folder);
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
      if (const auto op = ops.find(label.op); op != ops.end() && is_asked_for(options, device))
        if (const auto key = op->second.find(label.key); key != op->second.end())
          calls.push_back(&key->second);
    if (calls.size() == before)
      tunings.skip(label.op, label.key, why_no_record(recorded, options, label, folder));
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
    out +=
        "[" + entry.id.op + "] " + entry.id.key + ": " + stable_json(entry.config) + ", " +
        (entry.evidence.speedup > 0 ? std::string(line) + " the heuristic's speed, " : "") +
        (i + already < entries.size() ? std::string(outcome_name(entry.outcome)) : "tuned before") +
        "\n";
  }
  for (const Skipped& s : skipped)
    out += "[" + s.op + "] " + s.key + ": not tuned: " + s.why + "\n";
  if (skipped.empty() && !note.empty()) out += note + "\n";  // else it was just said
  return out;
}

}  // namespace ejk
