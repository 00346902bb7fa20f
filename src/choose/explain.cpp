// SPDX-License-Identifier: Apache-2.0
// Why a call gets the configuration it gets.
#include <algorithm>

#include "choose/chain.h"

namespace ejk::detail {

namespace {

void compare(const std::string& path, const Value& stored, const Value& call,
             std::vector<Explanation::Difference>& out) {
  if (stored == call) return;
  if (stored.is_object() && call.is_object()) {
    for (const auto& [name, value] : call.as_object().members) {
      const Value* other = stored.find(name);
      compare(path.empty() ? name : path + "." + name, other ? *other : Value(), value, out);
    }
    for (const auto& [name, value] : stored.as_object().members)
      if (!call.find(name))
        out.push_back({path.empty() ? name : path + "." + name, value, Value()});
  } else if (stored.is_array() && call.is_array() &&
             stored.as_array().size() == call.as_array().size()) {
    for (size_t i = 0; i < call.as_array().size(); ++i)
      compare(path + "[" + std::to_string(i) + "]", stored.as_array()[i], call.as_array()[i], out);
  } else out.push_back({path, stored, call});
}

void find_nearest(PersistentCache& store, const EntryId& id, Explanation& out) {
  const Value spec = parse_json(id.spec);
  store.for_each(
      id.op,
      [&](const Entry& entry) {
        if (entry.id.spec.empty()) return true;
        std::vector<Explanation::Difference> differences;
        if (entry.id.device != id.device)
          differences.push_back({"device", entry.id.device, id.device});
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
      },
      Detail::choice);
}

}  // namespace

Explanation Chain::explain(const Invocation& inv, const AnyKernel& kernel) {
  Call call(*this, inv, kernel, Call::Purpose::explanation);
  Explanation out{call.id.device, call.id.op, call.id.key, call.id.spec, {}, {}, {}, {}, {}};
  std::optional<Origin> origin;
  for (const Step& step : steps(call.policy)) {
    const auto found = (this->*step.ask)(call);
    const bool tunes = step.tier == Origin::autotune && call.would_tune;
    const Value config = found ? found->config.config().to_value() : Value();
    if (found) call.say(step.tier, true, found->detail, config);
    else if (tunes)
      std::ranges::find(call.tiers, name_of(step.tier), &Explanation::Tier::name)->answers = true;
    if (origin || (!found && !tunes)) continue;
    origin = step.tier;
    out.config = config;
  }
  out.tiers = std::move(call.tiers);
  out.origin = origin ? name_of(*origin) : name_of(EventKind::error);
  const bool known = origin && origin != Origin::autotune && origin != Origin::heuristics;
  if (!known && options_.persistent) find_nearest(*options_.persistent, call.id, out);
  return out;
}

}  // namespace ejk::detail

namespace ejk {

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
      out += "    " + d.field + ": stored " + stable_json(d.stored) + ", this call " +
             stable_json(d.call) + "\n";
  }
  out += "  arguments   " + spec + "\n";
  return out;
}

Value Explanation::to_value() const {
  Value list = Value::array();
  for (const Tier& tier : tiers)
    list.push_back(Value::object({{"tier", tier.name},
                                  {"answers", tier.answers},
                                  {"detail", tier.detail},
                                  {"config", tier.config}}));
  Value out = Value::object({{"device", device},
                             {"op", op},
                             {"key", key},
                             {"spec", parse_json(spec)},
                             {"origin", origin},
                             {"config", config},
                             {"tiers", std::move(list)}});
  if (nearest_key.empty()) return out;
  Value differences = Value::array();
  for (const Difference& d : nearest)
    differences.push_back(
        Value::object({{"field", d.field}, {"stored", d.stored}, {"call", d.call}}));
  out["nearest"] = Value::object({{"key", nearest_key}, {"differences", std::move(differences)}});
  return out;
}

std::ostream& operator<<(std::ostream& out, const Explanation& explanation) {
  return out << explanation.text();
}

}  // namespace ejk
