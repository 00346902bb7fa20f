// SPDX-License-Identifier: Apache-2.0
#include "stores.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/labels.h>
#include <ejk/names.h>
#include <ejk/open_store.h>
#include <ejk/record.h>

#include "base/env.h"
#include "base/file.h"
#include "output.h"
#include "platform/here.h"
#include "store/entry_file.h"
#include "store/keep.h"
#include "store/op_name.h"
#include "store/postgres/address.h"
#include "store/snapshot.h"

namespace ejk::cli {
namespace fs = std::filesystem;

namespace {

std::vector<std::string> layers_from_environment() {
  return base::env_paths("EJKERNEL_PERSISTENT_CACHE_LAYERS");
}

using Verdict = std::optional<std::pair<BadFile::Kind, std::string>>;

Verdict judge_entry(const std::string& text) {
  using enum BadFile::Kind;
  using Status = detail::ReadEntry::Status;
  const detail::ReadEntry read = detail::read_entry(text, Detail::all);
  if (read.status == Status::newer) return {{newer, read.why}};
  if (read.status == Status::altered) return {{altered, "its checksum is wrong"}};
  if (read.status == Status::broken) return {{damaged, read.why}};
  if (!read.no_candidates.empty())
    return {{altered, "its candidates cannot be read: " + read.no_candidates}};
  return std::nullopt;
}

Verdict judge_record(const std::string& text) {
  using enum BadFile::Kind;
  try {
    const Value document = parse_json(text);
    const Value* schema = document.find("schema");
    if (schema != nullptr && schema->is_int() && schema->as_double() > record_schema)
      return {{newer, "it was written by a newer version (schema " + stable_json(*schema) + ")"}};
    (void)record_from_document(document);
  } catch (const Error& problem) {
    return {{damaged, problem.what()}};
  }
  return std::nullopt;
}

// nullopt if the file is good, or gone.
std::optional<BadFile> judge_file(const std::string& path, Verdict (*judge)(const std::string&)) {
  using enum BadFile::Kind;
  constexpr uintmax_t read_limit = uintmax_t{16} << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  if (!error && size > read_limit) return BadFile{path, unreadable, "it is larger than 16 MiB"};
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (error || !file) return BadFile{path, unreadable, "it cannot be read"};
  const Verdict verdict = judge(text);
  return verdict ? std::optional(BadFile{path, verdict->first, verdict->second}) : std::nullopt;
}

void look_for_bad_files(const std::string& folder, Verdict (*judge)(const std::string&),
                        std::vector<BadFile>& out) {
  std::error_code error;
  if (fs::is_symlink(folder, error)) return;  // as a store: what is behind it is not its own
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    const fs::path& path = it->path();
    if (path.extension() == ".bad")
      out.push_back({path.string(), BadFile::Kind::damaged, "it was set aside"});
    else if (path.extension() == ".json")
      if (auto bad = judge_file(path.string(), judge)) out.push_back(std::move(*bad));
  }
}

auto order_of(const Held& held) {
  const EntryId& id = held.entry.id;
  return std::tie(id.device, id.op, id.key, id.spec, held.hidden);
}

// Marks those of a layer that do not answer. `answered`: calls that layers in front answer.
void mark_hidden(std::span<Held> layer, std::set<std::string>& answered) {
  std::map<std::string, Held*> best;
  const auto call_of = [](const Held& held) {
    const EntryId& id = held.entry.id;
    return stable_json(Value(Value::Array{id.device, id.op, id.key, id.spec}));
  };
  for (Held& held : layer) {
    Held*& first = best[call_of(held)];
    if (first == nullptr ||
        answers_before(held.entry, first->entry, detail::environment_here(held.entry.id)))
      first = &held;
  }
  for (Held& held : layer) {
    const std::string call = call_of(held);
    held.hidden = answered.contains(call);
    held.other_environment = !held.hidden && best[call] != &held;
    held.hidden |= held.other_environment;
  }
  // A failed tuning does not hide an answer behind it.
  for (const auto& [call, held] : best)
    if (held->entry.outcome != Outcome::failed) answered.insert(call);
}

}  // namespace

WarningSink Problems::sink() {
  return [list = list_](const std::string& message) {
    if (std::ranges::find(*list, message) != list->end()) return;
    say(message);
    list->push_back(message);
  };
}

Value Problems::to_value() const {
  Value out = Value::array();
  for (const std::string& problem : *list_) out.push_back(problem);
  return out;
}

std::string key_text(const std::string& key) {
  if (key.ends_with(':'))
    return "the op " + key.substr(0, key.size() - 1) + "; `ejk ls` lists what is there";
  std::string out = "a key that begins with \"" + key + "\"; `ejk ls` lists what is there";
  if (key.find(':') == std::string::npos) out += ", " + key + ": names all of an op " + key;
  return out;
}

void check_key(const std::string& key) {
  if (parse_label(key)) return;
  if (key.empty() || key == ":")
    throw Failure(exit_usage, "\"" + key +
                                  "\" is not a key: give the first digits of one (`ejk ls` "
                                  "lists them), OP:KEY, OP: or a label");
}

std::string device_name(const Device& device) {
  return std::string(platform_name(device.platform)) + ":" + std::to_string(device.index);
}

std::string device_named(const std::string& name) {
  if (name == "this") return cpu_device().fingerprint;
  const size_t colon = name.find(':');
  const auto platform = named<Platform>(std::string_view(name).substr(0, colon));
  if (colon == std::string::npos || !platform) return name;
  const DeviceList list = devices(*platform);
  for (const Device& device : list)
    if (device_name(device) == name) return device.fingerprint;
  throw Failure(exit_nothing, "there is no device " + name +
                                  (list.empty() ? ": " + why_no_devices(*platform)
                                                : "; `ejk devices` lists what is here"));
}

const Device& device_for(const std::string& name) {
  if (name.empty()) return cpu_device();
  const std::string wanted = device_named(name);
  for (const Device& device : devices(detail::platform_of(wanted)))
    if (device_name(device) == name || device.fingerprint.starts_with(wanted)) return device;
  throw Failure(exit_nothing, "there is no device " + name + " here; `ejk devices` lists them");
}

std::function<bool(const std::string& device)> wanted_devices(const Filter& filter) {
  if (filter.device.empty()) return {};
  return [name = filter.device](const std::string& device) {
    return name == "this" ? detail::device_here(device) != nullptr
                          : device.starts_with(device_named(name));
  };
}

bool matches(const Filter& filter, const EntryId& id) {
  if (!detail::op_matches(id.op, filter.ops)) return false;
  if (const auto wanted = wanted_devices(filter); wanted && !wanted(id.device)) return false;
  if (filter.key.empty()) return true;
  if (const auto label = parse_label(filter.key)) return id.op == label->op && id.key == label->key;
  const size_t colon = filter.key.rfind(':');
  if (colon == std::string::npos) return id.key.starts_with(filter.key);
  return detail::op_matches(id.op, filter.key.substr(0, colon)) &&
         id.key.starts_with(filter.key.substr(colon + 1));
}

bool is_shared(const std::string& store) { return detail::postgres::is_database_url(store); }

std::string shared_or(const std::string& given) {
  if (is_shared(given))
    static_cast<void>(words_read([&] { return detail::postgres::read_address(given); }));
  return given.empty() ? base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_URL") : given;
}

std::string store_path(const std::string& given) {
  if (is_shared(given))
    throw Failure(exit_usage, "got " + detail::postgres::without_password(given) +
                                  "; expected a directory: this verb does not change or check what "
                                  "many machines share (ejk store push sends entries there)");
  const std::string path = given.empty() ? default_store_path() : base::expand_home(given);
  if (path.empty())
    throw Failure(exit_failed,
                  "there is no place for a store: give --store DIR, or set "
                  "EJKERNEL_PERSISTENT_CACHE_DIR or HOME");
  return path;
}

std::string shown_store(const std::string& store) {
  return is_shared(store) ? detail::postgres::without_password(store) : store;
}

std::string store_name(const std::string& given) {
  const std::string shared = shared_or(given);
  return is_shared(shared) ? shown_store(shared) : store_path(given);
}

std::vector<std::string> stores_to_read(const std::string& given) {
  const std::string shared = shared_or(given);
  if (!is_shared(shared)) return store_paths(given);
  std::vector<std::string> out = {shared};
  if (given.empty())
    for (const std::string& layer : layers_from_environment()) out.push_back(layer);
  return out;
}

std::vector<std::string> store_paths(const std::string& given) {
  const std::string path = store_path(given);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_directory(status))
    throw Failure(exit_failed, path + " is not a directory, so it cannot be a store");
  if (!given.empty()) {
    if (!fs::exists(status))
      throw Failure(exit_nothing, "there is no store at " + path + ": " +
                                      (error ? error.message() : "no such directory") +
                                      " (ejk tune and ejk import make one)");
    return {path};
  }
  std::vector<std::string> out = {path};
  for (const std::string& layer : layers_from_environment()) out.push_back(layer);
  return out;
}

// A person waits longer for a database than a call does.
detail::PostgresStore::Options patient_options(Problems& problems) {
  detail::PostgresStore::Options out;
  out.connect_seconds = out.get_seconds = out.put_seconds = 10;
  out.prefetch_seconds = 60;
  out.on_warning = problems.sink();
  return out;
}

std::vector<Held> read_entries(const std::vector<std::string>& paths, const Filter& filter,
                               Problems& problems, Detail detail) {
  std::vector<Held> out;
  std::set<std::string> answered;
  Progress progress;
  for (const std::string& path : paths) {
    const auto store = detail::open_store(path, {.read_only = true, .on_warning = problems.sink()},
                                          patient_options(problems));
    const auto* directory = dynamic_cast<const DirectoryStore*>(store.get());
    const std::string where = directory == nullptr ? store->where() : path;
    const size_t begin = out.size();
    const auto take = [&](const Entry& entry) {
      if (matches(filter, entry.id))
        out.push_back({entry, where, directory == nullptr ? "" : directory->file_of(entry)});
      progress.show("reading " + where + ": " + std::to_string(out.size()) + " entries");
      return true;
    };
    if (auto* const shared = dynamic_cast<detail::SharedStore*>(store.get()))
      problems.is_database_away |= !shared->read_all("", take, detail, wanted_devices(filter));
    else store->for_each("", take, detail);
    mark_hidden(std::span(out).subspan(begin), answered);
  }
  std::ranges::stable_sort(out,
                           [](const Held& a, const Held& b) { return order_of(a) < order_of(b); });
  return out;
}

std::optional<Entry> entry_in_place_of(const DirectoryStore& store, const Entry& entry) {
  const auto file = base::read_file(store.file_of(entry), detail::max_entry_bytes);
  if (file.error) return std::nullopt;
  auto read = detail::read_entry(file.text, Detail::all);
  return read.entry && detail::same_place(*read.entry, entry) ? std::move(read.entry)
                                                              : std::nullopt;
}

std::string records_of(const std::string& given) {
  return given.empty() || is_shared(given) ? default_recording_path()
                                           : store_path(given) + "/recorded";
}

std::vector<BadFile> bad_files(const std::string& store, const std::string& records) {
  std::vector<BadFile> out;
  for (const char* format : {"/v1", "/v2"}) look_for_bad_files(store + format, judge_entry, out);
  if (!records.empty()) look_for_bad_files(records + "/v1", judge_record, out);
  std::ranges::sort(out, {}, &BadFile::path);
  return out;
}

std::shared_ptr<PersistentCache> open_layers(const std::string& given, bool read_only,
                                             Problems& problems) {
  std::vector<std::shared_ptr<Store>> layers;
  if (const auto snapshot = detail::snapshot_of_launch(); snapshot && given.empty()) {
    layers.push_back(snapshot);
    return std::make_shared<PersistentCache>(std::move(layers));
  }
  const std::string shared = shared_or(given);
  std::vector<std::string> places = {is_shared(shared) ? shared : store_path(given)};
  if (given.empty())
    for (const std::string& layer : layers_from_environment()) places.push_back(layer);
  for (const std::string& place : places) {
    layers.push_back(detail::open_store(
        place, {.read_only = read_only || !layers.empty(), .on_warning = problems.sink()},
        patient_options(problems)));
  }
  return std::make_shared<PersistentCache>(std::move(layers));
}

std::shared_ptr<PersistentCache> existing_layers(const std::string& given, Problems& problems) {
  static_cast<void>(stores_to_read(given));
  return open_layers(given, true, problems);
}

const Value* heuristic_of(const Entry& entry) {
  if (const Value& named = entry.evidence.heuristic_config; !named.is_null()) return &named;
  const double seconds = entry.evidence.heuristic_seconds;
  if (!(seconds > 0)) return nullptr;
  const Value* found = nullptr;
  size_t count = 0;
  for (const Measurement& m : entry.candidates)
    if (m.seconds == seconds && !is(m.status, CandidateStatus::rejected))
      found = &m.config, ++count;
  if (count == 1) return found;
  // Coarse clocks give several the same time.
  return count == 0 && seconds == entry.evidence.seconds ? &entry.config : nullptr;
}

Tone tone_of(const Entry& entry) {
  return entry.outcome == Outcome::failed  ? Tone::bad
         : entry.outcome == Outcome::tuned ? Tone::good
                                           : Tone::plain;
}

Value entry_summary(const Held& held) {
  const Entry& e = held.entry;
  return Value::object({{"op", e.id.op},
                        {"key", e.id.key},
                        {"call", call_text(e.id.spec)},
                        {"device", e.id.device},
                        {"outcome", outcome_name(e.outcome)},
                        {"config", e.config},
                        {"seconds", e.evidence.seconds},
                        {"speedup", e.evidence.speedup},
                        {"speedup_low", e.evidence.speedup_low},
                        {"speedup_high", e.evidence.speedup_high},
                        {"samples", e.evidence.samples},
                        {"complete", e.evidence.complete},
                        {"provenance", e.provenance},
                        {"time", e.evidence.time},
                        {"where", held.where},
                        {"file", held.file},
                        {"hidden", held.hidden},
                        {"other_environment", held.other_environment}});
}

}  // namespace ejk::cli
