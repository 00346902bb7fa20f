// SPDX-License-Identifier: Apache-2.0
// The persistent tier of a run with pins: this rank offers what it would take, and runs
// the config that is pinned then as it is.
#include "candidates/thread_fields.h"
#include "choose/chain.h"

namespace ejk::detail {

std::shared_ptr<Pins> Chain::pins() {
  std::lock_guard lock(state_->mutex);
  if (!state_->pins) state_->pins = pins_of_launch(launch_.pins, launch_.store.get());
  return state_->pins;
}

auto Chain::own_choice(Call& call) -> std::optional<Found> {
  call.keeps = false;
  auto own = from_persistent(call);
  if (!own) own = from_heuristics(call);
  call.keeps = !call.dry;
  return own;
}

auto Chain::from_pins(Call& call) -> std::optional<Found> {
  try {
    const auto run = pins();
    auto pinned = run->find(call.id);
    if (call.dry && !pinned) {
      auto own = from_persistent(call);
      if (own) own->detail += "; the run has none in " + run->where() + " yet, and gets this one";
      return own;
    }
    std::optional<Found> own;
    if (!pinned) {
      own = own_choice(call);
      if (auto* const gathered = GatheredPins::of_this_thread(); gathered != nullptr && own) {
        gathered->add(run, call.id, own->config.config().to_value());
        return own;
      }
      std::optional<Value> offer;
      if (own) offer = own->config.config().to_value();
      pinned = run->pin(call.id, offer);
      if (!pinned) fail(call);
    }
    return as_pinned(call, *run, *pinned, std::move(own));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::no_configuration) throw;
    if (call.dry) return call.pass(Origin::persistent, error.what());
    const std::string message = "[" + call.id.op + "] key " + call.id.key + ": " + error.what();
    if (options_.on_event) emit(call.event(EventKind::error, {}, message));
    throw Error(error.kind(), message);
  }
}

auto Chain::as_pinned(Call& call, const Pins& run, const Value& pinned, std::optional<Found> own)
    -> std::optional<Found> {
  const auto is_own = [&] { return own && own->config.config().to_value() == pinned; };
  if (is_own()) {
    keep(call, own->config, own->origin);
    return own;
  }
  base::OrWhy<Checked> config = base::Why{"asks for more threads than run here"};
  if (fits_these_cores(pinned)) config = call.check(pinned);
  if (config && !run.trusted() && !kernel_vouches(call.kernel, call.inv, config->config())) {
    if (!own) own = own_choice(call);
    if (!is_own())
      config = base::Why{
          "is not among the kernel's candidates, and others than this run may write there"};
  }
  if (!config) {
    const std::string message =
        "[" + call.id.op + "] got the config " + stable_json(pinned) + " for key " + call.id.key +
        ", pinned for all ranks of this run in " + run.where() + ", which " + config.why() +
        "; expected one that runs here as it is. Give all ranks the same "
        "kernels, library and number of cores, and launch with a new run";
    if (call.dry) return call.pass(Origin::persistent, message, pinned);
    if (options_.on_event) emit(call.event(EventKind::error, {}, message));
    throw Error(ErrorKind::no_configuration, message);
  }
  keep(call, *config, Origin::persistent);
  Found answer{*config, Origin::persistent, EventKind::cache_hit, Origin::persistent};
  answer.detail = run.where() + " has a config for all ranks of this run";
  return answer;
}

}  // namespace ejk::detail
