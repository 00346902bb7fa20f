// SPDX-License-Identifier: Apache-2.0
// The chain: each tier is one function, asked in order; the first answer wins.
#include "choose/chain.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <ejk/detail/hash.h>
#include <ejk/detail/warm_table.h>
#include <ejk/record.h>

#include "base/thrown.h"
#include "base/time.h"
#include "base/warn.h"
#include "candidates/thread_fields.h"
#include "choose/long_wait.h"
#include "choose/scope.h"
#include "store/strategy.h"
#include "tune/limits.h"

namespace ejk::detail {

std::string text_of(const EntryId& id) {
  return id.device + '\n' + id.op + '\n' + id.key + '\n' + id.spec;
}

namespace {

// Where it was tuned fewer threads could run than here, and threads are what it is about.
bool tuned_with_fewer_cores(const Entry& entry) {
  const Value* cores = entry.environment.find("cores");
  return cores != nullptr && cores->is_int() && cores->as_double() < visible_cores() &&
         speaks_of_threads(entry.config);
}

// Whether a candidate can run this call that the entry knows nothing of. Of large sets only the
// first are looked at, if at all: an entry of a search lists all candidates of small sets only.
bool has_new_candidates(const Entry& entry, const Invocation& inv, const AnyKernel& kernel) {
  constexpr uint64_t most = 1000;
  const bool searched = strategy_of(entry.evidence).may_have_searched();
  std::set<std::string> known;
  for (const Measurement& m : entry.candidates) known.insert(stable_json(m.config));
  try {
    const auto offered = kernel.candidate_cfgs(inv);
    if (!offered || (searched && too_large_to_list(*offered))) return false;
    const uint64_t count = std::min(offered->size(), most);
    for (uint64_t i = 0; i < count; ++i) {
      const AnyConfig c = offered->config(i);
      if (!known.contains(stable_json(c.to_value())) && kernel.is_valid(c, inv)) return true;
    }
  } catch (...) {
    return true;  // the tuning will say what was thrown
  }
  return false;
}

// Whether a tuning in which every candidate was rejected would end so again: it was done here, and
// no candidate has come since.
bool still_hopeless(const Entry& failed, const Invocation& inv, const AnyKernel& kernel) {
  if (!is_measured(failed)) return false;  // nobody here saw it fail
  const Strategy strategy = strategy_of(failed.evidence);
  if (strategy.given_list) return false;  // not the kernel's own
  if (failed.environment != inv.device->environment || !failed.evidence.complete) return false;
  const bool here_and_now = std::ranges::any_of(failed.candidates, [](const Measurement& m) {
    const auto kind = named<Rejection>(m.kind);
    if (kind == Rejection::invalid) return false;  // it is asked again for what is new
    return is(m.status, CandidateStatus::untried) || (kind && !is_permanent(*kind));
  });
  if (here_and_now) return false;
  return strategy.may_have_searched() || !has_new_candidates(failed, inv, kernel);
}

}  // namespace

std::string left_to_do(const Entry& entry, const Invocation& inv, const AnyKernel& kernel) {
  if (!is_measured(entry)) return {};
  if (strategy_of(entry.evidence).given_list) return {};  // the kernel's own list is another
  if (tuned_with_fewer_cores(entry)) return "it was done with fewer cores than there are here";
  if (entry.environment != inv.device->environment) return {};
  if (!entry.evidence.complete) return "it was cut short";
  if (entry.candidates.empty() || !has_new_candidates(entry, inv, kernel)) return {};
  return "there are new candidates";
}

Chain::Call::Call(const Chain& chain, const Invocation& invocation, const AnyKernel& any_kernel,
                  bool is_dry)
    : inv(invocation),
      kernel(any_kernel),
      policy(chain.policy()),
      dry(is_dry),
      started(base::seconds_now()),
      generation(chain.generation()) {
  if (policy.validate_backward) {
    inv.backward = true;
    if (!inv.words.empty()) inv.words[0] ^= backward_salt;
  }
  id = {inv.device->fingerprint, inv.op(), {}, inv.spec()};
  id.key = inv.call_key();
}

std::optional<std::string> Chain::Call::problem_with(const AnyConfig& config) const {
  try {
    if (kernel.is_valid(config, inv)) return std::nullopt;
    return "is not valid for this call (is_valid)";
  } catch (...) {
    return "made is_valid throw: " + base::what_was_thrown();
  }
}

auto Chain::Call::check(const AnyConfig& config, std::string& why) const -> std::optional<Checked> {
  if (config.type() != &kernel.config_type()) return check(config.to_value(), why);
  const auto problem = problem_with(config);
  if (!problem) return Checked(config);
  why = *problem;
  return std::nullopt;
}

auto Chain::Call::check(const Value& config, std::string& why) const -> std::optional<Checked> {
  const ConfigType& type = kernel.config_type();
  std::string misfit;
  const AnyConfig own(type.from_value(config, misfit), &type);
  if (own) return check(own, why);
  why = "does not fit " + std::string(type.name) + ": " + misfit;
  return std::nullopt;
}

Chain::Chain(const ConfigSelectorChain& selector, const SelectorOptions& options, WarmTable& warm)
    : selector_(selector),
      options_(options),
      warm_(warm),
      state_(std::make_unique<State>(options.most_shapes, options.on_warning)) {}

Chain::~Chain() = default;

auto Chain::steps(const AutotunePolicy& policy) -> std::array<Step, 7> {
  constexpr Step autotune{Origin::autotune, &Chain::from_autotune};
  constexpr Step heuristics{Origin::heuristics, &Chain::from_heuristics};
  const bool tune_first = policy.cache_miss_fallback == Fallback::autotune;
  return {{{Origin::override_, &Chain::from_override},
           {Origin::overlay, &Chain::from_overlay},
           {Origin::memory, &Chain::from_memory},
           {Origin::persistent, &Chain::from_persistent},
           {Origin::persistent, &Chain::from_unfinished},
           tune_first ? autotune : heuristics,
           tune_first ? heuristics : autotune}};
}

Choice Chain::choose(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, false);
  for (const Step& step : steps(call.policy))
    if (const auto found = (this->*step.ask)(call)) return answer(call, *found);
  fail(call);
}

Choice Chain::answer(const Call& call, const Found& found) {
  const AnyConfig& config = found.config.config();
  if (options_.on_event && found.event) {
    Event event = call.event(*found.event, config.to_value());
    if (found.tier) event.tier = name_of(*found.tier);
    emit(event);
  }
  return {config, found.origin};
}

// ---- the tiers ----------------------------------------------------------------------------------

auto Chain::from_override(Call& call) -> std::optional<Found> {
  if (!call.inv.override_cfg) return call.pass(Origin::override_, "none was given with the call");
  return Found{call.override_cfg(), Origin::override_, EventKind::override_};
}

auto Chain::from_overlay(Call& call) -> std::optional<Found> {
  size_t asked = 0;
  for (auto* scope = live_scopes(); scope; scope = scope->outer.get()) {
    if (!scope->overlay || !scope->active.load(std::memory_order_acquire)) continue;
    ++asked;
    const auto record = scope->overlay->find(call.id);
    if (!record) continue;
    std::string why;
    if (const auto config = call.check(record->config, why))
      return Found{*config, Origin::overlay, EventKind::overlay_hit};
    if (call.dry) continue;
    warn_once("overlay" + call.id.op, "[" + call.id.op + "] the overlay's config for key " +
                                          call.id.key + " " + why + "; it is passed over");
  }
  return call.pass(Origin::overlay, asked == 0
                                        ? "no overlay is in scope"
                                        : std::to_string(asked) + " in scope, none has this key");
}

auto Chain::from_memory(Call& call) -> std::optional<Found> {
  const auto record = options_.cache->find(call.id);
  if (!record) return call.pass(Origin::memory, "nothing for this key");
  const Value held = record->config.to_value();
  if (record->origin == Origin::heuristics) {
    if (!call.policy.allow_heuristics)
      return call.pass(Origin::memory, "holds a heuristic, which the policy does not allow", held);
    if (may_still_tune(call.policy, call.id))
      return call.pass(Origin::memory, "holds a heuristic, but tuning is possible now", held);
  }
  std::string why;
  const auto config = call.check(record->config, why);
  if (!config && !call.dry && record->config.type() != &call.kernel.config_type())
    warn_once("memory" + text_of(call.id), "[" + call.id.op + "] the cached config for key " +
                                               call.id.key + " " + why + "; it is passed over");
  if (!config) return call.pass(Origin::memory, "its config " + why, held);
  if (!call.dry) keep(call, *config, record->origin);
  return Found{*config, Origin::memory, EventKind::cache_hit, Origin::memory};
}

auto Chain::from_persistent(Call& call) -> std::optional<Found> {
  call.stored_is_unusable = false, call.resume_seconds = 0;
  call.stored.reset(), call.unfinished.reset(), call.unfinished_config.reset();
  if (!options_.persistent) return call.pass(Origin::persistent, "no persistent cache is set");
  const auto found = options_.persistent->get(call.id);
  if (!found) return call.pass(Origin::persistent, "nothing for this key");
  const Entry& entry = found->entry;
  auto unusable = [&](const std::string& why) {
    call.stored_is_unusable = true, call.stored = entry;
    if (!call.dry)
      warn_once("persistent" + text_of(call.id),
                "[" + call.id.op + "] the entry for key " + call.id.key + " in " + found->where +
                    " is not used: " + why + "; it will be replaced when this call is tuned again");
    return call.pass(Origin::persistent, found->where + ": " + why, entry.config);
  };
  if (entry.outcome == Outcome::failed) {
    if (!still_hopeless(entry, call.inv, call.kernel))
      return call.pass(Origin::persistent,
                       found->where +
                           ": an earlier tuning rejected every candidate, but there are new "
                           "ones, or it was in another environment");
    if (!call.dry) {
      std::lock_guard lock(state_->mutex);
      if (const std::string text = text_of(call.id); !state_->tried_in_vain.contains(text))
        state_->tried_in_vain.insert_or_assign(
            text, "an earlier tuning, kept in " + found->where + ", rejected every candidate");
    }
    return call.pass(Origin::persistent,
                     found->where + ": an earlier tuning rejected every candidate");
  }
  if (options_.strict_environment && entry.environment != call.inv.device->environment)
    return unusable("it was measured in another environment and the selector is strict");
  // One that was stored without its outputs serves calls with others.
  const bool of_any_outputs = entry.id.key != call.id.key;
  std::string remark;
  const auto config = check_stored(call, entry, remark);
  if (!config)
    return of_any_outputs ? call.pass(Origin::persistent, found->where + ": its config " + remark,
                                      entry.config)
                          : unusable("its config " + remark);
  if (may_resume(call)) {
    const bool here = entry.environment == call.inv.device->environment && !of_any_outputs;
    const double seconds = here ? seconds_to_resume(call.policy, entry.evidence) : 0;
    const std::string why_more = left_to_do(entry, call.inv, call.kernel);
    // What another thread goes on with now is waited for, though its seconds are counted already.
    if (!why_more.empty() && (!here || seconds > 0 || is_in_flight(call.id))) {
      call.stored = call.unfinished = entry, call.unfinished_config = config;
      call.resume_seconds = seconds;
      // Timings with another number of cores, or for other outputs, do not apply to this call.
      if (!here) {
        call.unfinished->candidates.clear();
        call.unfinished->evidence = {};
        call.unfinished->evidence.complete = false;
      }
      return call.pass(Origin::persistent, found->where + ": the tuning goes on, " + why_more,
                       entry.config);
    }
  }
  if (!call.dry) keep(call, *config, Origin::persistent);
  Found answer{*config, Origin::persistent, EventKind::cache_hit, Origin::persistent};
  if (!remark.empty()) answer.detail = remark;
  return answer;
}

bool Chain::may_resume(const Call& call) const {
  if (!call.policy.resume || !options_.persist_autotune) return false;
  if (!may_still_tune(call.policy, call.id)) return false;
  if (options_.persistent->writable_layer() == nullptr) return false;  // it would never get ahead
  std::lock_guard lock(state_->mutex);
  return !state_->tuned.contains(text_of(call.id));
}

bool Chain::is_in_flight(const EntryId& id) const {
  std::lock_guard lock(state_->mutex);
  return state_->flights.is_on_elsewhere(text_of(id));
}

// What is stored is not lost if the tuning cannot go on, unless it was rejected on the way.
auto Chain::from_unfinished(Call& call) -> std::optional<Found> {
  if (!call.unfinished) return std::nullopt;
  if (auto found = from_autotune(call)) return found;
  if (!call.unfinished || (call.dry && call.would_tune)) return std::nullopt;
  if (!call.dry) keep(call, *call.unfinished_config, Origin::persistent);
  return Found{*call.unfinished_config, Origin::persistent, EventKind::cache_hit,
               Origin::persistent};
}

auto Chain::from_heuristics(Call& call) -> std::optional<Found> {
  if (!call.policy.allow_heuristics)
    return call.pass(Origin::heuristics, "the policy does not allow them");
  std::optional<AnyConfig> guess;
  try {
    guess = call.kernel.heuristic_cfg(call.inv);
  } catch (...) {
    return call.pass(Origin::heuristics, "heuristic_cfg threw: " + base::what_was_thrown());
  }
  if (!guess) return call.pass(Origin::heuristics, "the kernel has no heuristic_cfg");
  std::string why;
  const auto config = call.check(*guess, why);
  if (!config)
    return call.pass(Origin::heuristics, "heuristic_cfg returned a config that " + why,
                     guess->to_value());
  if (!call.dry) keep(call, *config, Origin::heuristics);
  return Found{*config, Origin::heuristics, EventKind::heuristics};
}

namespace {

// What helps under this policy.
std::string cure_under(const AutotunePolicy& policy) {
  std::string put = "put one into the cache, an overlay or the store";
  if (!policy.allow_autotune) put += " (ejk tune does)";
  std::string hooks = policy.allow_autotune ? "candidate_cfgs" : "";
  if (policy.allow_heuristics) hooks += hooks.empty() ? "heuristic_cfg" : " or heuristic_cfg";
  if (hooks.empty()) return "Pass a config with the call, or " + put + ".";
  return "Pass a config with the call, " + put + ", or let " + hooks + " give one that can run it.";
}

}  // namespace

void Chain::fail(Call& call) {
  std::string message = "[" + call.id.op + "] no configuration for key " + call.id.key + " on " +
                        call.id.device + ":";
  for (const auto& tier : call.tiers) message += "\n  " + tier.name + ": " + tier.detail;
  message += "\n  arguments: " + call.id.spec + "\n" + cure_under(call.policy);
  if (options_.on_event) emit(call.event(EventKind::error, {}, message));
  throw Error(ErrorKind::no_configuration, message);
}

// ---- keeping and reusing -----------------------------------------------------------------------

void Chain::keep(Call& call, const Checked& checked, Origin origin) {
  const AnyConfig& config = checked.config();
  const auto present = options_.cache->find(call.id);
  if (!present) {
    if (auto complaint = state_->watch.saw(call.inv)) options_.on_warning(*complaint);
  }
  // A heuristic does not take the place of what was tuned or put for other calls with this key.
  const bool yields =
      present && origin == Origin::heuristics && present->origin != Origin::heuristics;
  if (!yields && (!present || present->origin != origin || !(present->config == config)))
    options_.cache->keep(call.id, {config, origin, call.id.spec}, call.generation);
  if (call.inv.words.empty()) return;
  auto entry = std::make_unique<WarmEntry>();
  entry->owner = config;
  entry->id = call.id;
  entry->record = call.inv.record;
  entry->heuristic = origin == Origin::heuristics;
  entry->ask_first = entry->heuristic && may_still_tune(*options_.policy, call.id);
  const uint64_t hash = hash_words(call.inv.words.data(), call.inv.words.size());
  warm_.publish(hash, std::move(entry), call.inv.words, call.generation);
}

// Whether a call under this policy would rather tune than take a heuristic that is kept.
bool Chain::may_still_tune(const AutotunePolicy& policy, const EntryId& id) const {
  if (!policy.allow_autotune || policy.cache_miss_fallback != Fallback::autotune) return false;
  std::lock_guard lock(state_->mutex);
  return !state_->tried_in_vain.contains(text_of(id));
}

std::optional<Choice> Chain::reuse(const WarmEntry& entry) {
  const double started = options_.on_event ? base::seconds_now() : 0;
  for (auto* scope = live_scopes(); scope; scope = scope->outer.get())
    if (scope->overlay && scope->active.load(std::memory_order_acquire) &&
        scope->overlay->find(entry.id))
      return std::nullopt;
  if (entry.heuristic) {
    const AutotunePolicy in_force = policy();
    if (!in_force.allow_heuristics || may_still_tune(in_force, entry.id)) return std::nullopt;
  }
  if (options_.on_event)
    emit({name_of(EventKind::cache_hit),
          entry.id.device,
          entry.id.op,
          entry.id.key,
          name_of(Origin::memory),
          entry.owner.to_value(),
          base::seconds_now() - started,
          {}});
  return Choice{entry.owner, Origin::memory};
}

// ---- telling -----------------------------------------------------------------------------------

void Chain::emit(const Event& event) {
  try {
    options_.on_event(event);
  } catch (...) {
    warn_once("on_event", "on_event threw: " + base::what_was_thrown() + "; the call goes on");
  }
}

void Chain::warn_once(const std::string& subject, const std::string& message) {
  state_->warn(subject, message);
}

}  // namespace ejk::detail
