// SPDX-License-Identifier: Apache-2.0
#include "offline/stored_call.h"

#include <ejk/error.h>
#include <ejk/registry.h>

#include "store/memory.h"
#include "store/shared.h"

namespace ejk {
namespace {

// The id of a call that may have been recorded without its outputs; nullopt: it is the recorded
// one, or this process cannot tell.
std::optional<EntryId> id_with_outputs(const RecordedCall& call) {
  if (!spec_without_outputs(call.id.spec).empty() || !is_registered(call.id.op))
    return std::nullopt;
  try {
    const auto made = rebuild_call(call);
    const Invocation& inv = made->invocation();
    EntryId id{call.id.device, call.id.op, inv.call_key(), inv.spec()};
    return id.key == call.id.key ? std::nullopt : std::optional(std::move(id));
  } catch (const Error&) {
    return std::nullopt;  // tuning it says why
  }
}

}  // namespace

std::optional<StoredCall> stored_for(PersistentCache& store, const EntryId& id) {
  auto found = store.get(id, Detail::choice);
  if (!found) return std::nullopt;
  const bool for_any_outputs = found->entry.id.key != id.key;
  return StoredCall{std::move(found->entry), for_any_outputs};
}

std::optional<StoredCall> stored_for(PersistentCache& store, const RecordedCall& call) {
  auto stored = stored_for(store, call.id);
  if (stored && stored->is_tuned()) return stored;
  const auto id = id_with_outputs(call);
  return id ? stored_for(store, *id) : stored;
}

std::set<std::string> devices_of(const std::vector<RecordedCall>& calls) {
  std::set<std::string> out;
  for (const RecordedCall& call : calls) out.insert(call.id.device);
  return out;
}

std::unique_ptr<PersistentCache> choices_of(const PersistentCache& store,
                                            const std::set<std::string>& devices) {
  const auto wanted = [&](const std::string& device) { return devices.contains(device); };
  std::vector<std::shared_ptr<Store>> layers;
  for (const auto& layer : store.layers()) {
    auto choices = std::make_shared<detail::MemoryStore>(Value(), layer->where());
    bool any = false;
    const auto take = [&](const Entry& entry) {
      any = true;
      if (!wanted(entry.id.device)) return true;
      Entry choice = entry;
      choice.device = {}, choice.extra = {};
      choices->take(std::move(choice));
      return true;
    };
    auto* const shared = dynamic_cast<detail::SharedStore*>(layer.get());
    if (shared != nullptr) static_cast<void>(shared->read_all("", take, Detail::choice, wanted));
    else layer->for_each("", take, Detail::choice);
    // One that may not be able to tell what it holds is asked about each call.
    if (any || shared != nullptr) layers.push_back(std::move(choices));
    else layers.push_back(layer);
  }
  return std::make_unique<PersistentCache>(std::move(layers));
}

}  // namespace ejk
