// SPDX-License-Identifier: Apache-2.0
// The persistent tier: entries as documents, which of two is better, and layers of stores.
#include <ejk/store.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <ejk/error.h>
#include <ejk/invocation.h>
#include <ejk/names.h>
#include <ejk/open_store.h>

#include "base/env.h"
#include "base/sha256.h"
#include "store/keep.h"

namespace ejk {
namespace {

// ---- entries as documents (docs/reference/store_format.md)

// The tables give the order of members in files. What is not in them is unknown and kept as it is.
constexpr std::array<std::pair<std::string_view, double Evidence::*>, 10> evidence_numbers = {{
    {"seconds", &Evidence::seconds},
    {"seconds_low", &Evidence::seconds_low},
    {"seconds_high", &Evidence::seconds_high},
    {"heuristic_seconds", &Evidence::heuristic_seconds},
    {"speedup", &Evidence::speedup},
    {"speedup_low", &Evidence::speedup_low},
    {"speedup_high", &Evidence::speedup_high},
    {"noise", &Evidence::noise},
    {"tuning_seconds", &Evidence::tuning_seconds},
    {"resumed_seconds", &Evidence::resumed_seconds},
}};
constexpr std::array<std::pair<std::string_view, std::string Evidence::*>, 7> evidence_texts = {{
    {"strategy", &Evidence::strategy},
    {"clock", &Evidence::clock},
    {"cache", &Evidence::cache},
    {"guard", &Evidence::guard},
    {"data", &Evidence::data},
    {"library", &Evidence::library},
    {"time", &Evidence::time},
}};
constexpr std::array<std::pair<std::string_view, double Measurement::*>, 4> measurement_numbers = {{
    {"seconds", &Measurement::seconds},
    {"ratio", &Measurement::ratio},
    {"ratio_low", &Measurement::ratio_low},
    {"ratio_high", &Measurement::ratio_high},
}};
constexpr std::array<std::string_view, 13> entry_names = {
    "schema", "op",       "key",        "spec",     "device",     "environment", "outcome",
    "config", "numerics", "provenance", "evidence", "candidates", "checksum"};
constexpr std::array<std::string_view, 2> device_names = {"fingerprint", "identity"};
constexpr std::array<std::string_view, 4> evidence_others = {"samples", "complete",
                                                             "heuristic_config", "offered"};
constexpr std::array<std::string_view, 6> measurement_others = {
    "config", "status", "kind", "why", "samples", "compile_seconds"};

bool contains(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool table_contains(const auto& table, std::string_view name) {
  return std::any_of(table.begin(), table.end(),
                     [&](const auto& row) { return row.first == name; });
}

// Members for which `known` is false; null if there are none. Here and below members are appended
// without looking for their name first, which would take quadratic time on a hostile file.
Value unknown_members(const Value& object, auto known) {
  Value::Object out;
  for (const auto& member : object.as_object().members) {
    if (!known(member.first)) out.members.push_back(member);
  }
  return out.members.empty() ? Value() : Value(std::move(out));
}

void append_unknown(Value& object, const Value* unknown) {
  if (unknown == nullptr || !unknown->is_object()) return;
  auto& members = object.as_object().members;
  const auto known_end = static_cast<std::ptrdiff_t>(members.size());
  for (const auto& member : unknown->as_object().members) {
    const bool known = std::any_of(members.begin(), members.begin() + known_end,
                                   [&](const auto& other) { return other.first == member.first; });
    if (!known) members.push_back(member);
  }
}

// Calls `take` with the member if it is there; a wrong kind is reported with the member's name.
void read_member(const Value& from, std::string_view name, auto take) {
  const Value* member = from.find(name);
  if (member == nullptr) return;
  try {
    take(*member);
  } catch (const Error& error) {
    throw Error(ErrorKind::parse, "member \"" + std::string(name) + "\": " + error.what());
  }
}

void read_text(const Value& from, std::string_view name, std::string& to) {
  read_member(from, name, [&](const Value& v) { to = v.as_string(); });
}

// No tuning takes as many samples or as long: who writes more gains nothing by it.
constexpr int max_samples = 1'000'000;
constexpr double max_measured = 1e9;

int as_count(const Value& value) {
  const int64_t count = value.as_int();
  if (count < 0) throw Error(ErrorKind::parse, "a count of " + std::to_string(count));
  return static_cast<int>(std::min<int64_t>(count, max_samples));
}

// Seconds, ratios and shares.
double as_measured(const Value& value) {
  const double number = value.as_double();
  if (!std::isfinite(number) || number < 0)
    throw Error(ErrorKind::parse, "got " + stable_json(value) + "; expected a number >= 0");
  return std::min(number, max_measured);
}

// As JSON where it gives the very same text again, for people; else as the text.
Value spec_member(const std::string& spec) {
  constexpr int depth_left = 90;  // below the document's own limit of 100
  if (spec.empty()) return Value();
  try {
    Value value = parse_json(spec, depth_left);
    const bool container = value.is_object() || value.is_array();
    if (container && stable_json(value) == spec) return value;
    return Value(spec);
  } catch (const Error&) {
    return Value(spec);
  }
}

std::string spec_text(const Value& member) {
  if (member.is_null()) return "";
  if (member.is_object() || member.is_array()) return stable_json(member);
  return member.as_string();
}

Value evidence_document(const Evidence& evidence) {
  Value out = Value::object();
  for (const auto& [name, number] : evidence_numbers) out[name] = evidence.*number;
  out["samples"] = evidence.samples;
  out["complete"] = evidence.complete;
  for (const auto& [name, text] : evidence_texts) out[name] = evidence.*text;
  if (!evidence.heuristic_config.is_null()) out["heuristic_config"] = evidence.heuristic_config;
  if (!evidence.offered.empty()) out["offered"] = evidence.offered;
  return out;
}

Evidence evidence_from(const Value& document) {
  Evidence out;
  for (const auto& [name, number] : evidence_numbers) {
    read_member(document, name, [&, to = number](const Value& v) { out.*to = as_measured(v); });
  }
  for (const auto& [name, text] : evidence_texts) read_text(document, name, out.*text);
  read_member(document, "heuristic_config", [&](const Value& v) { out.heuristic_config = v; });
  read_text(document, "offered", out.offered);
  read_member(document, "samples", [&](const Value& v) { out.samples = as_count(v); });
  read_member(document, "complete", [&](const Value& v) { out.complete = v.as_bool(); });
  return out;
}

Value measurement_document(const Measurement& measurement) {
  Value out = Value::object();
  out["config"] = measurement.config;
  out["status"] = measurement.status;
  if (!measurement.kind.empty()) out["kind"] = measurement.kind;
  if (!measurement.why.empty()) out["why"] = measurement.why;
  if (measurement.compile_seconds > 0) out["compile_seconds"] = measurement.compile_seconds;
  for (const auto& [name, number] : measurement_numbers) out[name] = measurement.*number;
  out["samples"] = measurement.samples;
  return out;
}

Measurement measurement_from(const Value& document) {
  Measurement out;
  (void)document.as_object();
  read_member(document, "config", [&](const Value& v) { out.config = v; });
  read_text(document, "status", out.status);
  read_text(document, "kind", out.kind);
  read_text(document, "why", out.why);
  read_member(document, "compile_seconds",
              [&](const Value& v) { out.compile_seconds = as_measured(v); });
  for (const auto& [name, number] : measurement_numbers) {
    read_member(document, name, [&, to = number](const Value& v) { out.*to = as_measured(v); });
  }
  read_member(document, "samples", [&](const Value& v) { out.samples = as_count(v); });
  return out;
}

// Unknown members of candidates are kept under the candidate's config, because lists change.
Value candidates_document(const Entry& entry) {
  std::map<std::string_view, const Value*> unknown;
  if (const Value* extra = entry.extra.find("candidates"); extra && extra->is_object()) {
    for (const auto& [config, members] : extra->as_object().members) unknown[config] = &members;
  }
  Value out = Value::array();
  for (const Measurement& measurement : entry.candidates) {
    Value document = measurement_document(measurement);
    const auto it = unknown.empty() ? unknown.end() : unknown.find(stable_json(measurement.config));
    if (it != unknown.end()) append_unknown(document, it->second);
    out.push_back(std::move(document));
  }
  return out;
}

bool known_in_evidence(std::string_view name) {
  return table_contains(evidence_numbers, name) || table_contains(evidence_texts, name) ||
         contains(evidence_others, name);
}

bool known_in_measurement(std::string_view name) {
  return table_contains(measurement_numbers, name) || contains(measurement_others, name);
}

// Top-level unknown members, and those of the known objects under these objects' names.
Value extra_from(const Value& document) {
  Value extra = unknown_members(document, [](auto name) { return contains(entry_names, name); });
  const auto keep = [&](std::string_view name, Value unknown) {
    if (!unknown.is_null()) extra[name] = std::move(unknown);
  };
  keep("device", unknown_members(*document.find("device"),
                                 [](auto name) { return contains(device_names, name); }));
  if (const Value* evidence = document.find("evidence")) {
    keep("evidence", unknown_members(*evidence, known_in_evidence));
  }
  const Value* candidates = document.find("candidates");
  if (candidates == nullptr) return extra;
  std::map<std::string, Value> by_config;
  for (const Value& candidate : candidates->as_array()) {
    Value unknown = unknown_members(candidate, known_in_measurement);
    const Value* config = candidate.find("config");
    if (!unknown.is_null()) by_config[stable_json(config ? *config : Value())] = std::move(unknown);
  }
  if (by_config.empty()) return extra;
  keep("candidates", Value::object({by_config.begin(), by_config.end()}));
  return extra;
}

const Value& required(const Value& from, std::string_view name) {
  if (const Value* member = from.find(name)) return *member;
  throw Error(ErrorKind::parse,
              "not an entry: the member \"" + std::string(name) + "\" is missing");
}

Outcome outcome_from(const std::string& text) {
  if (const auto outcome = named<Outcome>(text)) return *outcome;
  throw Error(ErrorKind::parse, "unknown outcome \"" + text + "\"");
}

void check_schema(const Value& document) {
  const Value& schema = required(document, "schema");
  if (schema.is_int() && schema == Value(entry_schema)) return;
  throw Error(ErrorKind::parse, "not an entry of schema " + std::to_string(entry_schema) +
                                    " but of " + stable_json(schema).substr(0, 40));
}

}  // namespace

std::string_view outcome_name(Outcome outcome) { return name_of(outcome); }

Value entry_to_document(const Entry& entry) {
  Value out = Value::object();
  out["schema"] = entry_schema;
  out["op"] = entry.id.op;
  out["key"] = entry.id.key;
  out["spec"] = spec_member(entry.id.spec);
  out["device"] = Value::object({{"fingerprint", entry.id.device}, {"identity", entry.device}});
  append_unknown(out["device"], entry.extra.find("device"));
  out["environment"] = entry.environment;
  out["outcome"] = outcome_name(entry.outcome);
  out["config"] = entry.config;
  if (!entry.numerics.is_null()) out["numerics"] = entry.numerics;
  out["provenance"] = entry.provenance;
  out["evidence"] = evidence_document(entry.evidence);
  append_unknown(out["evidence"], entry.extra.find("evidence"));
  out["candidates"] = candidates_document(entry);
  append_unknown(out, &entry.extra);
  return out;
}

Entry entry_from_document(const Value& document) {
  if (!document.is_object()) {
    throw Error(ErrorKind::parse,
                "not an entry but a JSON " + std::string(kind_name(document.kind())));
  }
  check_schema(document);
  for (const char* name : {"op", "key", "device", "outcome"}) (void)required(document, name);
  Entry out;
  read_text(document, "op", out.id.op);
  read_text(document, "key", out.id.key);
  read_member(document, "spec", [&](const Value& v) { out.id.spec = spec_text(v); });
  read_member(document, "device", [&](const Value& v) {
    out.id.device = required(v, "fingerprint").as_string();
    if (const Value* identity = v.find("identity")) out.device = *identity;
  });
  read_member(document, "environment", [&](const Value& v) { out.environment = v; });
  read_member(document, "outcome",
              [&](const Value& v) { out.outcome = outcome_from(v.as_string()); });
  read_member(document, "config", [&](const Value& v) { out.config = v; });
  read_member(document, "numerics", [&](const Value& v) { out.numerics = v; });
  read_text(document, "provenance", out.provenance);
  read_member(document, "evidence", [&](const Value& v) {
    (void)v.as_object();
    out.evidence = evidence_from(v);
  });
  read_member(document, "candidates", [&](const Value& v) {
    for (const Value& candidate : v.as_array())
      out.candidates.push_back(measurement_from(candidate));
  });
  out.extra = extra_from(document);
  return out;
}

std::string environment_id(const Entry& entry) {
  const bool transferred = is(entry.provenance, Provenance::transferred);
  return base::sha256_hex(stable_json(Value(Value::Array{entry.environment, transferred})), 32);
}

bool better_evidence(const Entry& candidate, const Entry& present) {
  const auto rank = [](const Entry& e) {
    return std::tuple(is_measured(e), e.outcome != Outcome::failed, e.evidence.complete,
                      e.evidence.samples, std::string_view(e.evidence.time), e.candidates.size(),
                      e.trusted);
  };
  if (rank(candidate) != rank(present)) return rank(candidate) > rank(present);
  return detail::content_digest(candidate) > detail::content_digest(present);
}

bool answers_before(const Entry& a, const Entry& b, const Value& environment) {
  const auto here = [&](const Entry& entry) {
    return entry.environment == environment && !is(entry.provenance, Provenance::transferred);
  };
  if (is_measured(a) != is_measured(b)) return is_measured(a);
  if (here(a) != here(b)) return here(a);
  return better_evidence(a, b);
}

std::string Store::local_directory() const { return default_store_path(); }

std::string default_store_path() {
  if (const auto own = base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_DIR"); !own.empty()) {
    return base::expand_home(own);
  }
  // The XDG rules say that relative paths are to be ignored.
  if (const auto xdg = base::env_or_empty("XDG_CACHE_HOME"); xdg.starts_with('/')) {
    return xdg + "/ejkernel";
  }
  const auto home = base::env_or_empty("HOME");
  return home.empty() ? "" : home + "/.cache/ejkernel";
}

// ---- layers

PersistentCache::PersistentCache() {
  const std::string path = default_store_path();
  const std::string url = base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_URL");
  if (!url.empty()) layers_.push_back(open_store(url));
  else if (!path.empty()) layers_.push_back(open_store(path));
  else
    stderr_warnings()(
        "no place to keep tuning results, they last as long as this process; "
        "set EJKERNEL_PERSISTENT_CACHE_DIR or HOME");
  for (const auto& layer : base::env_paths("EJKERNEL_PERSISTENT_CACHE_LAYERS")) {
    DirectoryStore::Options options;
    options.read_only = true;
    layers_.push_back(
        std::make_shared<DirectoryStore>(base::expand_home(layer), std::move(options)));
  }
}

PersistentCache::PersistentCache(const std::string& path) : layers_{open_store(path)} {}

PersistentCache::PersistentCache(std::vector<std::shared_ptr<Store>> layers)
    : layers_(std::move(layers)) {}

std::optional<PersistentCache::Found> PersistentCache::get(const EntryId& id, Detail detail,
                                                           const Value* environment) {
  if (auto found = find(id, detail, environment)) return found;
  // Entries from before outputs counted.
  const std::string old_spec = spec_without_outputs(id.spec);
  if (old_spec.empty()) return std::nullopt;
  auto found = find({id.device, id.op, short_hash(std::string_view(old_spec)), old_spec}, detail,
                    environment);
  // It may have failed because of other outputs.
  return found && found->entry.outcome != Outcome::failed ? found : std::nullopt;
}

std::optional<PersistentCache::Found> PersistentCache::find(const EntryId& id, Detail detail,
                                                            const Value* environment) {
  std::optional<Found> failed;  // does not hide what a layer behind has found
  for (const auto& layer : layers_) {
    auto entry = layer->get(id, detail, environment);
    if (!entry) continue;
    if (entry->outcome != Outcome::failed) return Found{std::move(*entry), layer->where()};
    if (!failed) failed = Found{std::move(*entry), layer->where()};
  }
  return failed;
}

Store* PersistentCache::writable_layer() const {
  for (const auto& layer : layers_) {
    if (layer->writable()) return layer.get();
  }
  return nullptr;
}

bool PersistentCache::put(const Entry& entry, IfPresent if_present) {
  Store* layer = writable_layer();
  return layer != nullptr && layer->put(entry, if_present);
}

bool PersistentCache::erase(const EntryId& id) {
  Store* layer = writable_layer();
  return layer != nullptr && layer->erase(id);
}

void PersistentCache::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                               Detail detail) {
  std::set<std::array<std::string, 4>> in_front, here;  // calls
  bool more = true;
  for (size_t i = 0; i < layers_.size() && more; ++i) {
    layers_[i]->for_each(
        op,
        [&](const Entry& entry) {
          if (layers_.size() == 1) return visit(entry);
          const EntryId& id = entry.id;
          std::array<std::string, 4> call = {id.device, id.op, id.key, id.spec};
          if (in_front.contains(call)) return true;
          here.insert(std::move(call));
          return more = visit(entry);
        },
        detail);
    in_front.merge(here);
  }
}

std::unique_ptr<TuningLease> PersistentCache::lease(const EntryId& id, double patience_seconds) {
  Store* layer = writable_layer();
  return layer == nullptr ? nullptr : layer->lease(id, patience_seconds);
}

// ---- what follows from the words of entries

bool is_measured(const Entry& entry) { return is(entry.provenance, Provenance::measured); }

bool is_rejected_for_good(const Measurement& m) {
  return is(m.status, CandidateStatus::rejected) &&
         is_permanent(named<Rejection>(m.kind).value_or(Rejection::unknown));
}

bool has_time(const Measurement& m) {
  return !is(m.status, CandidateStatus::untried) && !is(m.status, CandidateStatus::rejected);
}

}  // namespace ejk
