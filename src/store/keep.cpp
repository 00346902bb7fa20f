// SPDX-License-Identifier: Apache-2.0
#include "store/keep.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/sha256.h"
#include "platform/here.h"

namespace ejk::detail {
namespace {

// Members of both; where both have one, objects are merged and else that of `over` stays. Those
// that came together are sorted: the same text is kept in whatever order they came.
Value merged(const Value& under, const Value& over) {
  if (over.is_null()) return under;
  if (!under.is_object() || !over.is_object()) return over;
  std::map<std::string_view, const Value*> below;
  for (const auto& [name, value] : under.as_object().members) below[name] = &value;
  Value::Object out;
  for (const auto& [name, value] : over.as_object().members) {
    const auto it = below.find(name);
    out.members.emplace_back(name, it == below.end() ? value : merged(*it->second, value));
    if (it != below.end()) below.erase(it);
  }
  for (const auto& [name, value] : below) out.members.emplace_back(name, *value);
  if (!below.empty()) std::ranges::sort(out.members, {}, [](const auto& m) { return m.first; });
  return Value(std::move(out));
}

}  // namespace

bool serves(const Entry& entry, const EntryId& id) {
  return entry.id.device == id.device && entry.id.op == id.op && entry.id.key == id.key &&
         (entry.id.spec == id.spec || entry.id.spec.empty() || id.spec.empty());
}

std::string call_id(const EntryId& id) {
  return base::sha256_hex(stable_json(Value(Value::Array{id.device, id.op, id.key, id.spec})), 32);
}

bool same_call(const EntryId& a, const EntryId& b) {
  return a.device == b.device && a.op == b.op && a.key == b.key && a.spec == b.spec;
}

bool same_place(const Entry& a, const Entry& b) {
  return same_call(a.id, b.id) && environment_id(a) == environment_id(b);
}

const Value& environment_here(const EntryId& id) {
  const Device* device = device_here(id.device);
  return (device == nullptr ? cpu_device() : *device).environment;
}

std::string content_digest(const Entry& entry) {
  Entry known = entry;
  known.extra = {};
  return base::sha256_hex(stable_json(entry_to_document(known)));
}

std::optional<Entry> kept(const Entry& entry, const Entry& there, IfPresent if_present) {
  const bool wins = if_present == IfPresent::replace || better_evidence(entry, there);
  Entry out = wins ? entry : there;
  out.extra = merged(wins ? there.extra : entry.extra, out.extra);
  if (!wins && out.extra == there.extra) return std::nullopt;
  return out;
}

bool stands_in_the_way(const Entry& other, const Entry& entry) {
  return answers_before(other, entry, entry.environment);
}

}  // namespace ejk::detail
