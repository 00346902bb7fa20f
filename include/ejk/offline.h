// SPDX-License-Identifier: Apache-2.0
// Tuning away from the program: recorded calls, the calls of a lowered computation, and in which
// order.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/autotune.h>
#include <ejk/detail/export.h>
#include <ejk/labels.h>
#include <ejk/record.h>
#include <ejk/registry.h>
#include <ejk/selector.h>

namespace EJK_EXPORT ejk {

// Keeps this call in a recording, as one that was made once, without making it.
template <class K, class... Args>
void record_invocation(Recording& recording, const K& kernel, Args&&... args) {
  Executor(SelectorOptions{}).record(recording, kernel, std::forward<Args>(args)...);
}

// The recorded calls of a device by op and key, each made again from its sketch. Those that cannot
// be are left out; `why_not` (by "OP:KEY") says why. Arrays of all of them are in memory at once.
using Invocations = std::map<std::string, std::map<std::string, std::unique_ptr<RebuiltCall>>>;
Invocations get_invocations(const std::string& folder,
                            const std::string& device = cpu_device().fingerprint,
                            std::map<std::string, std::string>* why_not = nullptr);

// ---- in which order -----------------------------------------------------------------------------

// A recorded call and what tuning it is likely to give.
struct PlannedCall {
  RecordedCall call;         // what to tune
  double seconds = 0;        // spent in it so far, as recorded
  double expected_gain = 0;  // share of these that tuning is likely to save
  std::string why;           // where that number comes from
  double worth() const { return seconds * expected_gain; }  // seconds that tuning is likely to save
};

// The calls in the order in which tuning them pays: the time spent in a call, times the share that
// tuning is likely to save. That share is an estimate from what stored tunings gained on the
// devices of these calls; tunings of the same op count more than those of others. Calls that are
// tuned already, or whose tuning failed, are left out.
std::vector<PlannedCall> plan_tuning(std::vector<RecordedCall> calls, PersistentCache* store);

// ---- tuning -------------------------------------------------------------------------------------

// One of several processes that tune the same calls.
struct Shard {
  size_t index = 0;  // which of them, from 0
  size_t count = 0;  // of the processes; 0: not known
};

// Which calls are tuned, for how long, and where.
struct OfflineOptions {
  std::string folder = {};  // of recorded calls, or a database; default: default_recordings()
  std::string device = {};  // fingerprint; default: all that are here
  std::vector<std::string> ops = {};  // only these ("name" or "name@vVERSION"); empty: all
  double budget_seconds = 0;          // for all of them together; 0: any time
  bool retune = false;                // also what is tuned
  LabelOptions labels = {};           // how labels are found in a lowered computation
  ProgressSink on_progress = {};      // told which call is next: kind candidate, message "3 of 20"
  // Of recorded calls only those whose names hash to this shard, with index < count: processes with
  // different indices tune different calls. With `share`, where this process begins instead.
  std::optional<Shard> shard = {};
  // Other processes tune the same calls, and have the same store. Each takes a call by a lease,
  // passes over those that others hold and comes back to them at the end; it returns when every
  // call is stored, or failed here. Needs a store that can be written and locked, else
  // Error(invalid_argument); not for `retune`. Without a shard it begins anywhere.
  bool share = false;
  // With `share`: if for so many seconds nothing but calls that others hold was left, and none of
  // them was stored, they count as stuck, and their calls are tuned here too. 0: a minute and three
  // budgets.
  double held_seconds = 0;
  // How one call is tuned and its result kept, within so many seconds; throws if it cannot be.
  // Default: here, by the selector. A Worker does it in another process.
  std::function<Entry(const RecordedCall& call, double budget_seconds)> tune_call = {};
};

// What was tuned, and what was not and why.
struct OfflineResult : AutotuningResult {
  // A call or label that was not tuned, and why.
  struct Skipped {
    // Which call, and the reason, for people.
    std::string op, key;
    std::string why;
  };
  std::vector<Skipped> skipped;  // in the order in which they were met
  size_t already = 0;    // the last so many entries were tuned before and left as they were; they
                         // are given without candidates
  size_t elsewhere = 0;  // of these the first so many: others stored them while this one shared
  std::string note;      // why nothing was tuned; "" if something was

  // For people: a line per entry and per skipped call.
  std::string text() const;
};

// Tunes recorded calls of kernels that are registered here, those first that pay most, each once,
// within the budget. Results go where the selector's own go: memory, and the store unless
// persist_autotune is off. Never throws for a call that cannot be tuned: it is in `skipped`.
OfflineResult autotune_recorded(ConfigSelectorChain& selector, const OfflineOptions& options = {});

// The same for the labels of a lowered computation (text or bytes, see find_labels): every label's
// call once, in the order of the file, from its record. Labels without a record are in `skipped`.
OfflineResult autotune_lowered(ConfigSelectorChain& selector, std::string_view lowered,
                               const OfflineOptions& options = {});
// The same for labels that were found before, for example in a file or a folder.
OfflineResult autotune_labels(ConfigSelectorChain& selector, const FoundLabels& found,
                              const OfflineOptions& options = {});

}  // namespace ejk
