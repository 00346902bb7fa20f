// SPDX-License-Identifier: Apache-2.0
// The chain: each tier is one function, asked in order; the first answer wins.
#include "choose/chain.h"

#include <ejk/detail/hash.h>
#include <ejk/record.h>

#include "base/thrown.h"
#include "choose/scope.h"

namespace ejk::detail {

std::string text_of(const EntryId& id) {
  return id.device + '\n' + id.op + '\n' + id.key + '\n' + id.spec;
}

namespace {

Invocation with_objective(Invocation inv, const AutotunePolicy& policy) {
  if (policy.validate_backward) inv.backward = true;
  if (!inv.words.empty()) inv.words[0] ^= salt_of(policy);
  return inv;
}

std::optional<SameNumerics> restriction(const SelectorOptions& options,
                                        const AutotunePolicy& policy, const Invocation& inv,
                                        const AnyKernel& kernel) {
  if (policy.numerics != Numerics::same) return std::nullopt;
  const auto named = options.reference_cfgs.find(inv.op());
  return std::optional<SameNumerics>(
      std::in_place, kernel, inv,
      named == options.reference_cfgs.end() ? AnyConfig() : named->second);
}

}  // namespace

Chain::Call::Call(const Chain& chain, const Invocation& invocation, const AnyKernel& any_kernel,
                  Purpose purpose)
    : policy(chain.policy()),
      inv(with_objective(invocation, policy)),
      same(restriction(chain.options_, policy, inv, any_kernel)),
      kernel(same ? static_cast<const AnyKernel&>(*same) : any_kernel),
      dry(purpose == Purpose::explanation),
      started(base::seconds_now()),
      generation(chain.generation()) {
  if (same) {
    inv.numerics = same->reference_class();
    // The reference may be another one for every shape.
    if (!kernel.words_tell_shapes()) inv.words.clear();
  }
  id = {inv.device->fingerprint, inv.op(), {}, inv.spec()};
  id.key = inv.call_key();
}

Chain::Call::Call(const Chain& chain, const LaterCall& later, const AnyKernel& any_kernel)
    : policy(later.policy),
      inv(later.inv),
      same(restriction(chain.options_, policy, inv, any_kernel)),
      kernel(same ? static_cast<const AnyKernel&>(*same) : any_kernel),
      dry(false),
      by_hand(true),
      started(base::seconds_now()),
      generation(chain.generation()),
      id(later.id) {}

std::optional<std::string> Chain::Call::problem_with(const AnyConfig& config) const {
  if (same)
    if (auto other_class = same->problem_with(config)) return other_class;
  try {
    const AnyKernel& own = same ? same->kernel() : kernel;  // its class is known by now
    if (own.is_valid(config, inv)) return std::nullopt;
    return "is not valid for this call (is_valid)";
  } catch (...) {
    return "made is_valid throw: " + base::what_was_thrown();
  }
}

auto Chain::Call::check(const AnyConfig& config) const -> base::OrWhy<Checked> {
  if (config.type() != &kernel.config_type()) return check(config.to_value());
  if (auto problem = problem_with(config)) return base::Why{std::move(*problem)};
  return Checked(config);
}

auto Chain::Call::check(const Value& config) const -> base::OrWhy<Checked> {
  const ConfigType& type = kernel.config_type();
  std::string misfit;
  const AnyConfig own(type.from_value(config, misfit), &type);
  if (own) return check(own);
  return base::Why{"does not fit " + std::string(type.name) + ": " + misfit};
}

Chain::Chain(const ConfigSelectorChain& selector, const SelectorOptions& options, WarmTable& warm,
             Launch launch)
    : selector_(selector),
      options_(options),
      warm_(warm),
      launch_(std::move(launch)),
      state_(std::make_unique<State>(options.most_shapes, options.on_warning, *options.policy)),
      drift_(options.is_busy, options.most_shapes),
      background_({[this](LaterCall& later, const Background::Turn& turn) {
                     return tune_kept(later, turn);
                   },
                   [this](const LaterCall& later) {
                     later.kept->with_kernel(
                         [&](const AnyKernel& kernel) { record_for_later(later.inv, kernel); });
                   },
                   [this] { return is_stopped(); }},
                  options.is_busy, options.most_shapes) {}

Chain::~Chain() = default;

auto Chain::steps(const AutotunePolicy& policy) const -> std::array<Step, 7> {
  constexpr Step autotune{Origin::autotune, &Chain::from_autotune};
  const bool tune_first = policy.cache_miss_fallback == Fallback::autotune;
  const Step heuristics{Origin::heuristics, policy.cache_miss_fallback == Fallback::background
                                                ? &Chain::from_heuristics_for_now
                                                : &Chain::from_heuristics};
  return {{{Origin::override_, &Chain::from_override},
           {Origin::overlay, &Chain::from_overlay},
           {Origin::memory, &Chain::from_memory},
           {Origin::persistent,
            launch_.pins == PinMode::off ? &Chain::from_persistent : &Chain::from_pins},
           {Origin::persistent, &Chain::from_unfinished},
           tune_first ? autotune : heuristics,
           tune_first ? heuristics : autotune}};
}

Choice Chain::choose(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, Call::Purpose::choice);
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
    const auto config = call.check(record->config);
    if (config) return Found{*config, Origin::overlay, EventKind::overlay_hit};
    if (call.dry) continue;
    warn_of(
        call, "overlay",
        "the overlay's config for key " + call.id.key + " " + config.why() + "; it is passed over");
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
  const auto config = call.check(record->config);
  if (!config && !call.dry && record->config.type() != &call.kernel.config_type())
    warn_once("memory" + text_of(call.id), "[" + call.id.op + "] the cached config for key " +
                                               call.id.key + " " + config.why() +
                                               "; it is passed over");
  if (!config) return call.pass(Origin::memory, "its config " + config.why(), held);
  publish(call, *config, record->origin);
  if (record->origin == Origin::heuristics) tune_later(call);
  return Found{*config, Origin::memory, EventKind::cache_hit, Origin::memory};
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
  const auto config = call.check(*guess);
  if (!config)
    return call.pass(Origin::heuristics, "heuristic_cfg returned a config that " + config.why(),
                     guess->to_value());
  keep(call, *config, Origin::heuristics);
  return Found{*config, Origin::heuristics, EventKind::heuristics};
}

namespace {

// What helps under this policy.
std::string cure_under(const AutotunePolicy& policy, bool from_snapshot) {
  std::string put = from_snapshot
                        ? "put one into the cache or an overlay, or launch with a snapshot "
                          "that has one (ejk snapshot publish)"
                        : "put one into the cache, an overlay or the store";
  if (!policy.allow_autotune && !from_snapshot) put += " (ejk tune does)";
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
  message += "\n  arguments: " + call.id.spec + "\n" + cure_under(call.policy, launch_.snapshot);
  if (options_.on_event) emit(call.event(EventKind::error, {}, message));
  throw Error(ErrorKind::no_configuration, message);
}

// ---- keeping and reusing -----------------------------------------------------------------------

void Chain::keep(const Call& call, const Checked& checked, Origin origin) {
  if (!call.keeps) return;
  const AnyConfig& config = checked.config();
  const auto present = options_.cache->find(call.id);
  if (!present) {
    if (auto complaint = state_->watch.saw(call.inv)) {
      const WhileOthersMayFork free;  // as in emit
      options_.on_warning(*complaint);
    }
  }
  if (!present || present->origin != origin || !(present->config == config))
    options_.cache->keep(call.id, {config, origin, call.id.spec}, call.generation);
  if (!call.by_hand) return publish(call, checked, origin);
  // It was checked for this call, not for the others with this key. Nor does a tuning know whether
  // its call is recorded.
  ask_again(call);
}

// From now on warm calls with the words of this one run with it.
void Chain::publish(const Call& call, const Checked& checked, Origin origin) {
  const std::vector<uint64_t>& words = call.inv.words;
  if (!call.keeps || words.empty()) return;
  const AnyConfig& config = checked.config();
  auto entry = std::make_unique<WarmEntry>();
  entry->owner = config;
  entry->id = call.id;
  entry->record = call.inv.record;
  entry->heuristic = origin == Origin::heuristics;
  // A call under a policy with background is about to be queued.
  entry->ask_first =
      entry->heuristic &&
      (may_still_tune(*options_.policy, call.id) ||
       (!tunes_later(call.policy) && is_new_to_background(*options_.policy, call.id)));
  if (call.policy.drift_watch && !entry->heuristic)
    entry->watched = drift_.find(text_of(call.id), config);
  const uint64_t hash = hash_words(words.data(), words.size());
  warm_.publish(hash, std::move(entry), words, call.generation);
  // What a tuning kept meanwhile is for later calls. Asked now: it keeps first, and then makes
  // what was published ask again.
  const auto present = options_.cache->find(call.id);
  const bool tuned = present && present->origin != Origin::heuristics;
  if (tuned && (origin == Origin::heuristics || !(present->config == config)) &&
      call.check(present->config))
    ask_again(call, words);
}

// From now on warm calls with this key ask the tiers, each until that publishes an answer for it.
void Chain::ask_again(const Call& call) {
  for (const auto& words : warm_.words_of(call.id)) ask_again(call, words);
}

void Chain::ask_again(const Call& call, const std::vector<uint64_t>& words) {
  auto entry = std::make_unique<WarmEntry>();
  entry->id = call.id;
  entry->ask_first = true;
  warm_.publish(hash_words(words.data(), words.size()), std::move(entry), words, call.generation);
}

// Whether a call under this policy would rather tune than take a heuristic that is kept.
bool Chain::may_still_tune(const AutotunePolicy& policy, const EntryId& id) const {
  if (!policy.allow_autotune || policy.cache_miss_fallback != Fallback::autotune) return false;
  std::lock_guard lock(state_->mutex);
  return !state_->tried_in_vain.contains(text_of(id));
}

std::optional<Choice> Chain::reuse(const WarmEntry& entry) {
  if (!entry.owner) return std::nullopt;  // see ask_again
  const double started = options_.on_event ? base::seconds_now() : 0;
  for (auto* scope = live_scopes(); scope; scope = scope->outer.get())
    if (scope->overlay && scope->active.load(std::memory_order_acquire) &&
        scope->overlay->find(entry.id))
      return std::nullopt;
  if (entry.heuristic) {
    const AutotunePolicy in_force = policy();
    if (!in_force.allow_heuristics || may_still_tune(in_force, entry.id) ||
        is_new_to_background(in_force, entry.id))
      return std::nullopt;
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

std::string Chain::local_directory() const {
  if (!options_.persistent || !options_.persist_autotune) return {};
  const Store* const layer = options_.persistent->writable_layer();
  return layer == nullptr ? std::string() : layer->local_directory();
}

// ---- telling -----------------------------------------------------------------------------------

void Chain::emit(const Event& event) {
  const WhileOthersMayFork free;  // the sink may take locks of its own
  try {
    options_.on_event(event);
  } catch (...) {
    warn_once("on_event", "on_event threw: " + base::what_was_thrown() + "; the call goes on");
  }
}

void Chain::warn_once(const std::string& subject, const std::string& message) {
  const WhileOthersMayFork free;  // as in emit
  state_->warn(subject, message);
}

void Chain::warn_of(const Call& call, const std::string& problem, const std::string& message) {
  warn_once(problem + call.id.op, "[" + call.id.op + "] " + message);
}

void Chain::warn_of_failure(const Call& call, const std::string& reasons) {
  warn_once("failed" + text_of(call.id),
            "[" + call.id.op + "] tuning key " + call.id.key + " failed: " + reasons);
}

}  // namespace ejk::detail
