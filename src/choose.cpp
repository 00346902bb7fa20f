// SPDX-License-Identifier: Apache-2.0
// The chain: each tier is one function, asked in order; the first answer wins.
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <set>

#include <ejk/detail/plan.h>
#include <ejk/detail/warm_table.h>
#include <ejk/selector.h>

#include "base/env.h"
#include "scalar_watch.h"
#include "scope.h"

namespace ejk {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr uint64_t backward_salt = 0x5851F42D4C957F2D;

// Long enough for another process to finish the same tuning; after that it counts as stuck.
std::chrono::milliseconds patience_for(const AutotunePolicy& policy) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * (20 + 3 * policy.budget_seconds)));
}

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "something that is not a std::exception";
  }
}

// A config field that asks for more threads than run here makes the config useless here.
bool asks_too_many_threads(const Value& config) {
  for (std::string_view name : {"threads", "num_threads"})
    if (const Value* v = config.find(name); v && v->is_int() && v->as_int() > visible_cores()) return true;
  return false;
}

std::string text_of(const EntryId& id) { return id.device + '\n' + id.op + '\n' + id.key + '\n' + id.spec; }

}  // namespace

// ---- one call on its way through the tiers -----------------------------------------------------

struct ConfigSelectorChain::Call {
  Call(const ConfigSelectorChain& chain, const Invocation& invocation, const AnyKernel& any_kernel, bool is_dry)
      : inv(invocation), kernel(any_kernel), policy(chain.policy()), dry(is_dry), started(now()),
        generation(chain.generation()) {
    if (policy.validate_backward) {
      inv.backward = true;
      if (!inv.words.empty()) inv.words[0] ^= backward_salt;
    }
    id = {inv.device->fingerprint, inv.op(), {}, inv.spec()};
    id.key = short_hash(std::string_view(id.spec));
  }

  // Why a tier did not answer.
  std::nullopt_t pass(std::string tier, std::string why, Value config = {}) {
    tiers.push_back({std::move(tier), false, std::move(why), std::move(config)});
    return std::nullopt;
  }

  Invocation inv;
  const AnyKernel& kernel;
  AutotunePolicy policy;
  const bool dry;  // only explains: nothing is kept, sent or tuned
  double started;
  uint64_t generation;  // of the cache when the call began
  EntryId id;
  std::vector<Explanation::Tier> tiers;
};

// What one selector remembers besides the cache.
struct ConfigSelectorChain::State {
  std::mutex mutex;
  std::condition_variable flight_ended;
  std::map<std::string, std::thread::id> in_flight;   // keys being tuned and by whom
  std::map<std::string, AnyConfig> tuned;             // for forbid_reautotune
  std::map<std::string, std::string> tried_in_vain;   // keys whose tuning gave nothing, and why
  std::set<std::string> warned;
  ScalarWatch scalars;
};

ConfigSelectorChain::ConfigSelectorChain(SelectorOptions options)
    : options_(std::move(options)), warm_(std::make_unique<detail::WarmTable>()), state_(std::make_unique<State>()) {
  if (!options_.cache) options_.cache = std::make_shared<ConfigCache>();
  if (!options_.policy) options_.policy = policy_from_environment();
  if (!options_.tuner) options_.tuner = std::make_shared<Tuner>();
  if (!options_.on_warning) options_.on_warning = stderr_warnings();
  if (options_.policy->validate_backward) salt_ = backward_salt;
}

ConfigSelectorChain::~ConfigSelectorChain() = default;

Choice ConfigSelectorChain::choose(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, false);
  if (auto found = from_override(call)) return answer(call, *found, "override");
  if (auto found = from_overlay(call)) return answer(call, *found, "overlay_hit");
  if (auto found = from_memory(call)) return answer(call, *found, "cache_hit", "memory");
  if (auto found = from_persistent(call)) return answer(call, *found, "cache_hit", "persistent");
  if (auto found = from_fallback(call, true)) return *found;
  if (auto found = from_fallback(call, false)) return *found;
  fail(call);
}

Choice ConfigSelectorChain::answer(Call& call, Choice choice, std::string_view kind, std::string_view tier) {
  if (options_.on_event && !call.dry)
    emit({kind, call.id.device, call.id.op, call.id.key, tier, choice.config.to_value(), now() - call.started, {}});
  return choice;
}

// ---- the tiers ----------------------------------------------------------------------------------

std::optional<Choice> ConfigSelectorChain::from_override(Call& call) {
  if (!call.inv.override_cfg) return call.pass("override", "none was given with the call");
  return Choice{call.inv.override_cfg, Origin::override_};
}

namespace {

// The same config as the kernel's own type; empty with the reason if its fields do not fit.
AnyConfig as_type(const AnyConfig& config, const ConfigType& type, std::string& why) {
  if (config.type() == &type) return config;
  return {type.from_value(config.to_value(), why), &type};
}

}  // namespace

std::optional<Choice> ConfigSelectorChain::from_overlay(Call& call) {
  size_t asked = 0;
  for (auto* scope = detail::live_scopes(); scope; scope = scope->outer.get()) {
    if (!scope->overlay || !scope->active.load(std::memory_order_acquire)) continue;
    ++asked;
    const auto record = scope->overlay->find(call.id);
    if (!record) continue;
    std::string why;
    AnyConfig config = as_type(record->config, call.kernel.config_type(), why);
    if (config) return Choice{std::move(config), Origin::overlay};
    warn_once("overlay" + call.id.op, "[" + call.id.op + "] the overlay's config for key " + call.id.key +
                                          " does not fit " + std::string(call.kernel.config_type().name) + ": " +
                                          why + "; it is passed over");
  }
  return call.pass("overlay", asked == 0 ? "no overlay is in scope"
                                         : std::to_string(asked) + " in scope, none has this key");
}

std::optional<Choice> ConfigSelectorChain::from_memory(Call& call) {
  const auto record = options_.cache->find(call.id);
  if (!record) return call.pass("memory", "nothing for this key");
  std::string why;
  AnyConfig config = as_type(record->config, call.kernel.config_type(), why);
  if (!config) {
    warn_once("memory" + text_of(call.id), "[" + call.id.op + "] the cached config for key " + call.id.key +
                                               " does not fit " + std::string(call.kernel.config_type().name) +
                                               ": " + why + "; it is passed over");
    return call.pass("memory", "its config does not fit: " + why);
  }
  const Value held = config.to_value();
  if (record->origin == Origin::heuristics) {
    if (!call.policy.allow_heuristics) return call.pass("memory", "holds a heuristic, which the policy does not allow", held);
    bool tried;
    {
      std::lock_guard lock(state_->mutex);
      tried = state_->tried_in_vain.contains(text_of(call.id));
    }
    if (!tried && call.policy.allow_autotune && call.policy.cache_miss_fallback == Fallback::autotune)
      return call.pass("memory", "holds a heuristic, but tuning is possible now", held);
  }
  if (!call.kernel.is_valid(config, call.inv))
    return call.pass("memory", "its config is not valid for this call (is_valid)", held);
  if (!call.dry) keep(call, config, record->origin);
  return Choice{std::move(config), Origin::memory};
}

std::optional<Choice> ConfigSelectorChain::from_persistent(Call& call) {
  if (!options_.persistent) return call.pass("persistent", "no persistent cache is set");
  const auto found = options_.persistent->get(call.id);
  if (!found) return call.pass("persistent", "nothing for this key");
  const Entry& entry = found->entry;
  auto unusable = [&](const std::string& why) {
    if (!call.dry)
      warn_once("persistent" + text_of(call.id), "[" + call.id.op + "] the entry for key " + call.id.key + " in " +
                                                     found->where + " is not used: " + why +
                                                     "; it will be replaced when this call is tuned again");
    return call.pass("persistent", found->where + ": " + why, entry.config);
  };
  if (entry.outcome == Outcome::failed) {
    if (!call.dry) {
      std::lock_guard lock(state_->mutex);
      state_->tried_in_vain.try_emplace(text_of(call.id), "an earlier tuning, kept in " + found->where +
                                                              ", rejected every candidate");
    }
    return call.pass("persistent", found->where + ": an earlier tuning rejected every candidate");
  }
  if (options_.strict_environment && entry.environment != call.inv.device->environment)
    return unusable("it was measured in another environment and the selector is strict");
  std::string why;
  AnyConfig config(call.kernel.config_type().from_value(entry.config, why), &call.kernel.config_type());
  if (!config) return unusable("its config no longer fits " + std::string(call.kernel.config_type().name) + ": " + why);
  if (asks_too_many_threads(entry.config)) return unusable("its config asks for more threads than run here");
  if (!call.kernel.is_valid(config, call.inv)) return unusable("its config is not valid for this call (is_valid)");
  if (!call.dry) keep(call, config, Origin::persistent);
  return Choice{std::move(config), Origin::persistent};
}

std::optional<Choice> ConfigSelectorChain::from_fallback(Call& call, bool first) {
  const bool autotune = (call.policy.cache_miss_fallback == Fallback::autotune) == first;
  return autotune ? from_autotune(call) : from_heuristics(call);
}

std::optional<Choice> ConfigSelectorChain::from_heuristics(Call& call) {
  if (!call.policy.allow_heuristics) return call.pass("heuristics", "the policy does not allow them");
  std::optional<AnyConfig> config;
  try {
    config = call.kernel.heuristic_cfg(call.inv);
  } catch (...) {
    return call.pass("heuristics", "heuristic_cfg threw: " + what_of(std::current_exception()));
  }
  if (!config) return call.pass("heuristics", "the kernel has no heuristic_cfg");
  if (!call.kernel.is_valid(*config, call.inv))
    return call.pass("heuristics", "heuristic_cfg returned a config that is_valid rejects", config->to_value());
  if (!call.dry) keep(call, *config, Origin::heuristics);
  return answer(call, {std::move(*config), Origin::heuristics}, "heuristics");
}

std::optional<Choice> ConfigSelectorChain::from_autotune(Call& call) {
  if (!call.policy.allow_autotune) return call.pass("autotune", "the policy does not allow it");
  const std::string flight = text_of(call.id);
  std::unique_lock lock(state_->mutex);
  // Another thread may be at it: wait for its result.
  for (auto other = state_->in_flight.find(flight); other != state_->in_flight.end() && !call.dry;
       other = state_->in_flight.find(flight)) {
    if (other->second == std::this_thread::get_id())
      return call.pass("autotune", "this thread is already tuning this very call (the kernel calls itself)");
    state_->flight_ended.wait(lock);
    lock.unlock();
    if (auto found = from_memory(call)) return answer(call, std::move(*found), "cache_hit", "memory");
    lock.lock();
  }
  if (const auto vain = state_->tried_in_vain.find(flight); vain != state_->tried_in_vain.end())
    return call.pass("autotune", "it was tried before in this process: " + vain->second);
  if (options_.forbid_reautotune) {
    if (const auto earlier = state_->tuned.find(flight); earlier != state_->tuned.end()) {
      std::string why;
      AnyConfig config = as_type(earlier->second, call.kernel.config_type(), why);
      lock.unlock();
      if (config && call.kernel.is_valid(config, call.inv)) {
        if (!call.dry) keep(call, config, Origin::autotune);
        return answer(call, {std::move(config), Origin::autotune}, "cache_hit", "memory");
      }
      lock.lock();
    }
  }
  if (call.dry) {
    lock.unlock();
    try {
      const auto candidates = call.kernel.candidate_cfgs(call.inv);
      return call.pass("autotune", !candidates ? "the kernel has no candidate_cfgs"
                                               : "would measure " + std::to_string(candidates->size()) + " candidates");
    } catch (...) {
      return call.pass("autotune", "candidate_cfgs threw: " + what_of(std::current_exception()));
    }
  }
  state_->in_flight.emplace(flight, std::this_thread::get_id());
  lock.unlock();
  struct Landing {  // also when something throws
    State& state;
    const std::string& flight;
    ~Landing() {
      {
        std::lock_guard guard(state.mutex);
        state.in_flight.erase(flight);
      }
      state.flight_ended.notify_all();
    }
  } landing{*state_, flight};
  return tune_alone(call);
}

void ConfigSelectorChain::fail(Call& call) {
  std::string message = "[" + call.id.op + "] no configuration for key " + call.id.key + " on " + call.id.device + ":";
  for (const auto& tier : call.tiers) message += "\n  " + tier.name + ": " + tier.detail;
  message += "\n  arguments: " + call.id.spec +
             "\nPass a config with the call, put one into the cache or an overlay, allow autotuning, or give the "
             "kernel a heuristic_cfg.";
  if (options_.on_event)
    emit({"error", call.id.device, call.id.op, call.id.key, {}, {}, now() - call.started, message});
  throw Error(ErrorKind::no_configuration, message);
}

// ---- tuning -------------------------------------------------------------------------------------

// This thread is the only one in this process that tunes this key.
std::optional<Choice> ConfigSelectorChain::tune_alone(Call& call) {
  std::unique_ptr<TuningLease> lease;
  if (options_.persistent && options_.persist_autotune) {
    lease = options_.persistent->lease(call.id, patience_for(call.policy));
    // Another process may have finished it while this one waited.
    if (auto found = from_persistent(call)) return answer(call, std::move(*found), "cache_hit", "persistent");
    if (std::lock_guard lock(state_->mutex); state_->tried_in_vain.contains(text_of(call.id)))
      return call.pass("autotune", "an earlier tuning rejected every candidate");
  }
  const auto entry = run_tuner(call);
  if (!entry || entry->outcome == Outcome::failed) return std::nullopt;
  std::string why;
  AnyConfig config(call.kernel.config_type().from_value(entry->config, why), &call.kernel.config_type());
  if (options_.persistent && options_.persist_autotune) options_.persistent->put(*entry);
  keep(call, config, Origin::autotune);
  return Choice{std::move(config), Origin::autotune};
}

// Races the candidates and remembers how it ended. Empty if there was nothing to race.
std::optional<Entry> ConfigSelectorChain::run_tuner(Call& call) {
  auto in_vain = [&](const std::string& why) {
    {
      std::lock_guard lock(state_->mutex);
      state_->tried_in_vain.insert_or_assign(text_of(call.id), why);
    }
    call.pass("autotune", why);
    if (options_.on_event)
      emit({"autotune_finish", call.id.device, call.id.op, call.id.key, {}, {}, now() - call.started, why});
    return std::nullopt;
  };

  if (options_.on_event)
    emit({"autotune_start", call.id.device, call.id.op, call.id.key, {}, {}, now() - call.started, {}});
  std::vector<AnyConfig> candidates;
  size_t invalid = 0;
  std::optional<AnyConfig> heuristic;
  try {
    auto offered = call.kernel.candidate_cfgs(call.inv);
    if (!offered) return in_vain("the kernel has no candidate_cfgs");
    for (AnyConfig& c : *offered)
      if (call.kernel.is_valid(c, call.inv)) candidates.push_back(std::move(c));
      else ++invalid;
  } catch (...) {
    return in_vain("candidate_cfgs threw: " + what_of(std::current_exception()));
  }
  if (candidates.empty())
    return in_vain(invalid == 0 ? "candidate_cfgs returned no candidate"
                                : "is_valid rejected all " + std::to_string(invalid) + " candidates");
  try {
    heuristic = call.kernel.heuristic_cfg(call.inv);
    if (heuristic && !call.kernel.is_valid(*heuristic, call.inv)) heuristic.reset();
  } catch (...) {
    warn_once("heuristic" + call.id.op, "[" + call.id.op + "] heuristic_cfg threw for key " + call.id.key + ": " +
                                            what_of(std::current_exception()) + "; tuning goes on without it");
  }

  TuneResult result;
  bool call_itself_fails = false;
  try {
    const auto trial = call.kernel.trial(call.inv);
    TuneTask task{call.id.op, call.id.key, trial.get(), candidates, heuristic, call.policy.budget_seconds};
    result = options_.tuner->tune(task);
    if (!result.winner && heuristic) {
      // If not even the heuristic runs, it is the call that is wrong, not the candidates.
      try {
        trial->reset();
        trial->run(*heuristic);
      } catch (...) {
        call_itself_fails = true;
      }
    }
  } catch (...) {
    return in_vain("the tuner threw: " + what_of(std::current_exception()));
  }

  Entry entry;
  entry.id = call.id;
  entry.outcome = result.outcome;
  if (result.winner) entry.config = candidates.at(*result.winner).to_value();
  else entry.outcome = Outcome::failed;
  entry.device = call.inv.device->identity;
  entry.environment = call.inv.device->environment;
  entry.evidence = result.evidence;
  entry.candidates = result.candidates;
  if (entry.outcome == Outcome::failed) {
    std::string why = "every candidate was rejected";
    for (const Measurement& m : result.candidates) why += "; " + stable_json(m.config) + ": " + m.why;
    if (call_itself_fails) {  // not remembered: the next call may be a right one
      call.pass("autotune", why);
      return std::nullopt;
    }
    warn_once("failed" + text_of(call.id), "[" + call.id.op + "] tuning key " + call.id.key + " failed: " + why);
    if (options_.persistent && options_.persist_autotune) options_.persistent->put(entry);
    in_vain(why);
    return entry;
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->tuned.insert_or_assign(text_of(call.id), candidates.at(*result.winner));
    state_->tried_in_vain.erase(text_of(call.id));
  }
  if (options_.on_event)
    emit({"autotune_finish", call.id.device, call.id.op, call.id.key, {}, entry.config, now() - call.started,
          outcome_name(entry.outcome)});
  return entry;
}

std::pair<Choice, Entry> ConfigSelectorChain::tune(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, false);
  {
    std::lock_guard lock(state_->mutex);
    state_->tried_in_vain.erase(text_of(call.id));
  }
  auto entry = run_tuner(call);
  if (!entry || entry->outcome == Outcome::failed) fail(call);
  std::string why;
  AnyConfig config(kernel.config_type().from_value(entry->config, why), &kernel.config_type());
  if (options_.persistent && options_.persist_autotune) options_.persistent->put(*entry, true);
  keep(call, config, Origin::autotune);
  return {Choice{std::move(config), Origin::autotune}, std::move(*entry)};
}

// ---- keeping and reusing --------------------------------------------------------------------------

void ConfigSelectorChain::keep(Call& call, const AnyConfig& config, Origin origin) {
  const auto present = options_.cache->find(call.id);
  if (!present) {
    if (auto complaint = state_->scalars.saw(call.inv)) options_.on_warning(*complaint);
  }
  if (!present || present->origin != origin || !(present->config == config))
    options_.cache->insert(call.id, {config, origin, call.id.spec});
  if (call.inv.words.empty()) return;
  const uint64_t hash = detail::hash_words(call.inv.words.data(), call.inv.words.size());
  warm_->publish(hash, call.inv.words, config, origin == Origin::heuristics, call.id, call.generation);
}

uint64_t ConfigSelectorChain::scoped_salt() const { return policy().validate_backward ? backward_salt : 0; }

std::optional<Choice> ConfigSelectorChain::reuse(const detail::WarmEntry& entry) {
  const double started = has_event_sink() ? now() : 0;
  for (auto* scope = detail::live_scopes(); scope; scope = scope->outer.get())
    if (scope->overlay && scope->active.load(std::memory_order_acquire) && scope->overlay->find(entry.id))
      return std::nullopt;
  if (entry.heuristic) {
    const AutotunePolicy now_valid = policy();
    if (!now_valid.allow_heuristics) return std::nullopt;
    if (now_valid.allow_autotune && now_valid.cache_miss_fallback == Fallback::autotune) {
      std::lock_guard lock(state_->mutex);
      if (!state_->tried_in_vain.contains(text_of(entry.id))) return std::nullopt;
    }
  }
  if (options_.on_event)
    emit({"cache_hit", entry.id.device, entry.id.op, entry.id.key, "memory", entry.owner.to_value(), now() - started, {}});
  return Choice{entry.owner, Origin::memory};
}

// ---- policy ---------------------------------------------------------------------------------------

AutotunePolicy policy_from_environment() {
  const std::string word = env("EJKERNEL_AUTOTUNE_POLICY").value_or("autotune");
  AutotunePolicy policy;
  if (word == "autotune" || word.empty()) return policy;
  policy.allow_autotune = false;
  if (word == "heuristics") return policy;
  policy.allow_heuristics = false;
  if (word == "frozen") return policy;
  throw Error(ErrorKind::invalid_argument, "EJKERNEL_AUTOTUNE_POLICY is \"" + word +
                                               "\"; it must be \"autotune\", \"heuristics\" or \"frozen\"");
}

namespace {

void apply(const PolicyUpdates& updates, AutotunePolicy& policy) {
  if (updates.allow_autotune) policy.allow_autotune = *updates.allow_autotune;
  if (updates.allow_heuristics) policy.allow_heuristics = *updates.allow_heuristics;
  if (updates.cache_miss_fallback) policy.cache_miss_fallback = *updates.cache_miss_fallback;
  if (updates.validate_backward) policy.validate_backward = *updates.validate_backward;
  if (updates.budget_seconds) policy.budget_seconds = *updates.budget_seconds;
}

void apply_from_outermost(const detail::ScopeNode* scope, const ConfigSelectorChain* chain, AutotunePolicy& policy) {
  if (!scope) return;
  apply_from_outermost(scope->outer.get(), chain, policy);
  if (!scope->active.load(std::memory_order_acquire)) return;
  if (scope->selector == nullptr || scope->selector == chain) apply(scope->updates, policy);
  if (scope->forward_only) policy.validate_backward = false;
}

}  // namespace

AutotunePolicy ConfigSelectorChain::policy() const {
  AutotunePolicy policy = *options_.policy;
  apply_from_outermost(detail::live_scopes(), this, policy);
  return policy;
}

// ---- telling --------------------------------------------------------------------------------------

void ConfigSelectorChain::emit(const Event& event) {
  try {
    options_.on_event(event);
  } catch (...) {
    warn_once("on_event", "on_event threw: " + what_of(std::current_exception()) + "; the call goes on");
  }
}

void ConfigSelectorChain::warn_once(const std::string& subject, const std::string& message) {
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->warned.insert(subject).second) return;
  }
  options_.on_warning(message);
}

// ---- explaining -----------------------------------------------------------------------------------

namespace {

void compare(const std::string& path, const Value& stored, const Value& call, std::vector<Explanation::Difference>& out) {
  if (stored == call) return;
  if (stored.is_object() && call.is_object()) {
    for (const auto& [name, value] : call.as_object().members) {
      const Value* other = stored.find(name);
      compare(path.empty() ? name : path + "." + name, other ? *other : Value(), value, out);
    }
    for (const auto& [name, value] : stored.as_object().members)
      if (!call.find(name)) out.push_back({path.empty() ? name : path + "." + name, value, Value()});
  } else if (stored.is_array() && call.is_array() && stored.as_array().size() == call.as_array().size()) {
    for (size_t i = 0; i < call.as_array().size(); ++i)
      compare(path + "[" + std::to_string(i) + "]", stored.as_array()[i], call.as_array()[i], out);
  } else out.push_back({path, stored, call});
}

void find_nearest(PersistentCache& store, const EntryId& id, Explanation& out) {
  const Value spec = parse_json(id.spec);
  store.for_each(id.op, [&](const Entry& entry) {
    if (entry.id.spec.empty()) return true;
    std::vector<Explanation::Difference> differences;
    if (entry.id.device != id.device) differences.push_back({"device", entry.id.device, id.device});
    try {
      compare("", parse_json(entry.id.spec), spec, differences);
    } catch (const Error&) {
      return true;  // a spec that is not JSON cannot be near
    }
    if (out.nearest_key.empty() || differences.size() < out.nearest.size()) {
      out.nearest_key = entry.id.key;
      out.nearest = std::move(differences);
    }
    return true;
  });
}

}  // namespace

Explanation ConfigSelectorChain::explain(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, true);
  Explanation out{call.id.device, call.id.op, call.id.key, call.id.spec, {}, "error", {}, {}, {}};
  auto ask = [&](std::string_view name, std::optional<Choice> found) {
    if (!found) return;
    const Value config = found->config.to_value();
    call.tiers.push_back({std::string(name), true, "has a config", config});
    if (out.origin != "error") return;
    out.origin = name;
    out.config = config;
  };
  const bool autotune_first = call.policy.cache_miss_fallback == Fallback::autotune;
  ask("override", from_override(call));
  ask("overlay", from_overlay(call));
  ask("memory", from_memory(call));
  ask("persistent", from_persistent(call));
  ask(autotune_first ? "autotune" : "heuristics", from_fallback(call, true));
  ask(autotune_first ? "heuristics" : "autotune", from_fallback(call, false));
  out.tiers = std::move(call.tiers);
  const bool stored = out.origin != "error" && out.origin != "heuristics";
  if (!stored && options_.persistent) find_nearest(*options_.persistent, call.id, out);
  return out;
}

std::string Explanation::text() const {
  std::string out = op + " key " + key + " on " + device + "\n";
  for (const Tier& tier : tiers) {
    out += "  " + tier.name + std::string(12 - std::min<size_t>(tier.name.size(), 11), ' ');
    out += tier.detail;
    if (!tier.config.is_null()) out += " " + stable_json(tier.config);
    out += tier.answers && tier.name == origin ? "  <- chosen\n" : "\n";
  }
  if (!nearest_key.empty()) {
    out += "  nearest stored key " + nearest_key + ":\n";
    for (const Difference& d : nearest)
      out += "    " + d.field + ": stored " + stable_json(d.stored) + ", this call " + stable_json(d.call) + "\n";
  }
  out += "  arguments   " + spec + "\n";
  return out;
}

Value Explanation::to_value() const {
  Value list = Value::array();
  for (const Tier& tier : tiers)
    list.push_back(Value::object({{"tier", tier.name}, {"answers", tier.answers}, {"detail", tier.detail}, {"config", tier.config}}));
  Value out = Value::object({{"device", device}, {"op", op}, {"key", key}, {"spec", parse_json(spec)},
                             {"origin", origin}, {"config", config}, {"tiers", std::move(list)}});
  if (nearest_key.empty()) return out;
  Value differences = Value::array();
  for (const Difference& d : nearest)
    differences.push_back(Value::object({{"field", d.field}, {"stored", d.stored}, {"call", d.call}}));
  out["nearest"] = Value::object({{"key", nearest_key}, {"differences", std::move(differences)}});
  return out;
}

std::ostream& operator<<(std::ostream& out, const Explanation& explanation) { return out << explanation.text(); }

}  // namespace ejk
