// SPDX-License-Identifier: Apache-2.0
// The chain that finds a configuration: override, overlay, memory, disk, tuning, heuristics.
#pragma once

#include <atomic>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/cache.h>
#include <ejk/detail/export.h>
#include <ejk/invocation.h>
#include <ejk/kernel.h>
#include <ejk/store.h>
#include <ejk/tuner.h>

namespace EJK_EXPORT ejk {

class ConfigSelectorChain;
class Recording;
namespace detail {
class Chain;
struct ScopeNode;
struct WarmEntry;
struct WatchedCall;
class WarmTable;
// The calling thread's innermost scope; nullptr in the usual case, which is all a warm call asks.
inline thread_local constinit ScopeNode* innermost_scope = nullptr;
}  // namespace detail

// ---- policy -----------------------------------------------------------------------------------

// Which tier is asked first when nothing is stored for a call.
enum class Fallback : uint8_t {
  autotune,    // the call waits while its candidates are measured
  heuristics,  // the call runs with the heuristic
  background,  // so it does, and is tuned after it has returned: see background_bytes
};

// What a choice may change in the results of a call.
enum class Numerics : uint8_t {
  any,   // their last bits
  same,  // nothing: a config must be of the class that the kernel's `numerics` gives the reference
         // config. That is heuristic_cfg's, or the one in SelectorOptions::reference_cfgs
};

// A field of type Each<T> is a T, or an optional T that is empty at first: the list of fields is
// written once, here.
template <template <class> class Each>
struct PolicyFields {
  // What a field holds until it is set.
  template <class T>
  static constexpr Each<T> at_first(T value) {
    if constexpr (std::is_same_v<Each<T>, T>) return value;
    else return {};
  }

  // Which tiers may answer a call for which nothing is stored. With neither, such a call is an
  // error.
  Each<bool> allow_autotune = at_first(true);
  Each<bool> allow_heuristics = at_first(true);
  // What is asked first when nothing is stored. The other one is asked next, if allowed.
  Each<Fallback> cache_miss_fallback = at_first(Fallback::autotune);
  // Measure forward plus backward. Such results are kept apart from forward-only ones.
  Each<bool> validate_backward = at_first(false);
  // Of calls and their gradients. Choices under Numerics::same are kept apart, by class. A config
  // that is given with the call is not questioned.
  Each<Numerics> numerics = at_first(Numerics::any);
  // Tuning one key inside a call takes at most about this long, tries at most so many
  // configurations (0: any number) and ends with the first that is this fast (0: none is).
  Each<double> budget_seconds = at_first(10.0);
  Each<int> budget_evaluations = at_first(0);
  Each<double> target_seconds = at_first(0.0);
  // First runs of candidates happen in a child process, where that works.
  Each<bool> guard = at_first(true);
  // Continue a stored tuning that was cut short, or that knows fewer candidates than there are now.
  Each<bool> resume = at_first(true);
  // Calls spend at most this share of budget_seconds on that, all processes together: a tuning that
  // does not end must not stall program after program. What is left is for `ejk tune`, or for
  // ConfigSelectorChain::resume. A call whose single runs take too long for the share, or which has
  // used it up, takes what is stored.
  Each<double> resume_share = at_first(0.1);
  // Fallback::background keeps copies of the arguments of calls that wait for their tuning, of so
  // many bytes together. What does not fit is recorded for later (record.h), if there is a store.
  Each<int64_t> background_bytes = at_first(int64_t{256} << 20);
  // They are tuned one at a time in a process of its own, which takes at most this share of one
  // core and none while the machine is busy (SelectorOptions::is_busy). 0, and without `guard`:
  // only ConfigSelectorChain::idle tunes them.
  Each<double> background_share = at_first(0.05);
  // One warm call in about 1000 is timed and compared with the evidence of its config: calls on the
  // CPU that take 5 us or more. If a call has become slower than its evidence, beyond the noise and
  // on a machine that is not busy, there is an event "drift", `ejk doctor` lists the call, and it
  // is tuned again under Fallback::background.
  Each<bool> drift_watch = at_first(false);
};
using AutotunePolicy = PolicyFields<std::type_identity_t>;  // what a selector may do on a miss
using PolicyUpdates = PolicyFields<std::optional>;  // fields that are not set stay as they are

// The policy that $EJKERNEL_AUTOTUNE_POLICY names: "autotune" (also if unset), "background" (never
// wait for a tuning), "heuristics" (never tune) or "frozen" (only what is given or stored; anything
// else is an error). Throws Error(invalid_argument) for another word.
AutotunePolicy policy_from_environment();

// ---- scopes -----------------------------------------------------------------------------------

// Changes what calls of the current thread see, until it is destroyed. Scopes nest; the inner one
// is asked first. They may end in any order, and on any thread, without disturbing each other.
class [[nodiscard]] Scope {
 public:
  explicit Scope(std::shared_ptr<detail::ScopeNode> node);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::shared_ptr<detail::ScopeNode> node_;
};

// For every selector, or for one.
Scope policy_override(PolicyUpdates updates);
Scope policy_override(const ConfigSelectorChain& selector, PolicyUpdates updates);
// Tuning measures forward only, whatever the policy's validate_backward says.
Scope forward_autotune_only();
// What this cache holds comes before memory and disk. It must outlive the scope.
Scope overlay_cache(const ConfigCache& cache);
Scope overlay_cache(std::shared_ptr<const ConfigCache> cache);

// The calling thread's scopes, to be taken to another thread: current_scopes().run(work).
class ScopeSnapshot {
 public:
  // Calls work() with these scopes in place of the calling thread's own.
  void run(const std::function<void()>& work) const;

 private:
  friend ScopeSnapshot current_scopes();
  std::shared_ptr<detail::ScopeNode> innermost_;
};
// What the calling thread has now. Cheap; keeps overlays alive.
ScopeSnapshot current_scopes();

// ---- events -----------------------------------------------------------------------------------

// One step of a choice. Its texts are valid during the call of the sink only.
struct Event {
  // "override", "overlay_hit", "cache_hit", "autotune_start", "autotune_finish", "heuristics",
  // "takeover" (calls have another config from now on, which was tuned in the background), "drift"
  // (calls have become slower than the evidence of their config says), "error"
  std::string_view kind;
  std::string_view device, op, key;  // of the call
  std::string_view tier;             // of a cache_hit: "memory" or "persistent"
  Value config;                      // null where none was found
  double seconds = 0;           // spent finding it (tuning included); of a drift: a call takes now
  std::string_view message;     // of an error, or how a tuning ended
  double evidence_seconds = 0;  // of a drift: a call took when it was tuned
};
// Called on the thread that makes a call or tunes one, from several threads at once. What it
// throws becomes a warning, and the call continues.
using EventSink = std::function<void(const Event&)>;

// ---- choosing ---------------------------------------------------------------------------------

// What a chooser answers.
struct Choice {
  // The config, of the kernel's type, and the tier that gave it.
  AnyConfig config;
  Origin origin = Origin::memory;
  uint32_t record = 0;  // the call in a recording; 0: it is not recorded
  // Its run is timed for AutotunePolicy::drift_watch; nullptr: it is not.
  std::shared_ptr<detail::WatchedCall> watched = {};
};

// Anything that can find a configuration for a call. Called from any thread.
class ConfigChooser {
 public:
  virtual ~ConfigChooser() = default;
  // The config must be of kernel.config_type(). Throws Error(no_configuration) if there is none.
  virtual Choice choose(const Invocation& inv, const AnyKernel& kernel) = 0;
};

// What each tier held for a call and why it did or did not answer.
struct Explanation {
  // One tier, in the order of the chain.
  struct Tier {
    std::string name;  // "override", "overlay", "memory", "persistent", "autotune", "heuristics"
    bool answers = false;  // it has a config that the call may use
    std::string detail;    // what it held or why it passed
    Value config;          // null if it has none
  };
  // One place in which the nearest stored call differs from this one.
  struct Difference {
    std::string field;   // "args_spec[0].shape[1]"
    Value stored, call;  // the values of that field
  };

  std::string device, op, key, spec;  // of the call, as in EntryId
  std::vector<Tier> tiers;            // in the order in which they are asked
  std::string origin;       // the first one that answers or would tune; "error" if none does
  Value config;             // its config; null if it would have to be tuned first
  std::string nearest_key;  // when nothing is stored for the call: the stored key most like it
  std::vector<Difference> nearest;  // how that call differs

  // For people, several lines; and the same as a JSON-like value, as `ejk explain --json` prints
  // it.
  std::string text() const;
  Value to_value() const;
};
std::ostream& operator<<(std::ostream& out, const Explanation& explanation);

// What a chain is made of. Everything that is left out has a default.
struct SelectorOptions {
  std::shared_ptr<ConfigCache> cache = {};    // default: a new one
  std::optional<AutotunePolicy> policy = {};  // default: policy_from_environment()
  std::shared_ptr<Tuner> tuner = {};          // default: Tuner()
  // Default: none, so that nothing is read from or written to disk.
  std::shared_ptr<PersistentCache> persistent = {};
  bool persist_autotune = true;  // whether tuned configs are written there
  EventSink on_event = {};       // default: none
  // A key that was tuned by this selector is not tuned again, even after the cache was cleared: the
  // earlier result is returned.
  bool forbid_reautotune = true;
  // Stored entries from another environment (cores, compiler, library) are a miss.
  bool strict_environment = false;
  WarningSink on_warning = {};    // default: stderr_warnings()
  ProgressSink on_progress = {};  // of tunings; default: progress_from_environment()
  // Where calls are recorded; default: recording_from_environment(). See record.h.
  std::shared_ptr<Recording> recording = {};
  // Asked several times a second, by a thread of the chain, whether tunings in the background shall
  // wait, and by calls that drift_watch finds slow, whether that is why. Several threads may ask at
  // once. Default: as long as less than half a core of the machine is free.
  std::function<bool()> is_busy = {};
  // Set from elsewhere to end tunings with what they have: &StopOnInterrupt::requested()
  const std::atomic<bool>* stop = nullptr;
  // How many different calls are remembered: those made or asked for last, 1 to 2 kB each. An
  // earlier one is read from the store or chosen again. A cache that is given has a limit of its
  // own, and what was put into it by hand stays.
  size_t most_shapes = ConfigCache::default_most_shapes;
  // Under Numerics::same, what results must be equal to, by op ("name@vVERSION"), in place of what
  // heuristic_cfg returns here: make_config(Config{...}).
  std::map<std::string, AnyConfig> reference_cfgs = {};
};

// The chain. Thread-safe. Threads that miss on one key at once tune it once; so do processes that
// share a persistent cache.
class ConfigSelectorChain final : public ConfigChooser {
 public:
  explicit ConfigSelectorChain(SelectorOptions options = {});
  ~ConfigSelectorChain() override;
  ConfigSelectorChain(const ConfigSelectorChain&) = delete;
  ConfigSelectorChain& operator=(const ConfigSelectorChain&) = delete;

  Choice choose(const Invocation& inv, const AnyKernel& kernel) override;
  // Tunes now, whatever is stored, and replaces it unless the tuning was cut short. Measures these
  // candidates if some are given, else those of the kernel. Throws Error(no_configuration) if every
  // candidate is rejected.
  std::pair<Choice, Entry> tune(const Invocation& inv, const AnyKernel& kernel,
                                std::shared_ptr<const CandidateSet> candidates = nullptr);
  // Continues the stored tuning of the call with the whole budget, if it was cut short or if there
  // are new candidates. Otherwise tunes as `tune` does.
  std::pair<Choice, Entry> resume(const Invocation& inv, const AnyKernel& kernel);
  // The stored tuning of the call under this policy, if there is nothing left to do for it. Tunes
  // nothing; nullopt also if it failed.
  std::optional<Entry> tuned(const Invocation& inv, const AnyKernel& kernel);
  // The program has nothing to do: tunes here, for at most about so long, calls that wait for it
  // under Fallback::background. Returns how many still wait.
  size_t idle(double seconds);
  // Asks every tier and changes nothing.
  Explanation explain(const Invocation& inv, const AnyKernel& kernel);

  // As the calling thread sees it, scopes included.
  AutotunePolicy policy() const;
  ConfigCache& cache() const noexcept { return *options_.cache; }
  PersistentCache* persistent() const noexcept { return options_.persistent.get(); }
  Tuner& tuner() const noexcept { return *options_.tuner; }
  bool persist_autotune() const noexcept { return options_.persist_autotune; }
  // nullptr: calls are not recorded.
  Recording* recording() const noexcept { return options_.recording.get(); }

  // -- for the executor's warm path --
  // The table of a warm call, and what makes it void.
  const detail::WarmTable& warm() const noexcept { return *warm_; }
  uint64_t generation() const noexcept { return options_.cache->generation(); }
  // Mixed into the first key word: results for another objective live beside these.
  uint64_t salt() const noexcept { return salt_; }
  bool has_event_sink() const noexcept { return static_cast<bool>(options_.on_event); }
  // The salt under the calling thread's scopes.
  uint64_t scoped_salt() const;
  // The choice for a warm entry under scopes, events and policy; empty if the chain must be asked.
  std::optional<Choice> reuse(const detail::WarmEntry& entry);
  // The clock of watched calls, in seconds.
  double watch_seconds() const;
  // A watched call took this long. True if it shall be tuned again.
  bool saw_run(detail::WatchedCall& call, double seconds);
  // Tunes this call again in the background; records it where the policy does not allow that.
  void tune_again(const Invocation& inv, const AnyKernel& kernel);

 private:
  SelectorOptions options_;
  uint64_t salt_ = 0;
  std::shared_ptr<detail::WarmTable> warm_;
  std::shared_ptr<detail::Chain> chain_;
};

}  // namespace ejk
