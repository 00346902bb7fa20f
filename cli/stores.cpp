// SPDX-License-Identifier: Apache-2.0
#include "stores.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>

#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/labels.h>
#include <ejk/names.h>
#include <ejk/record.h>

#include "base/env.h"
#include "output.h"
#include "platform/here.h"
#include "store/checksum.h"
#include "store/op_name.h"

namespace ejk::cli {
namespace fs = std::filesystem;

namespace {

// As the library reads $EJKERNEL_PERSISTENT_CACHE_LAYERS.
std::vector<std::string> layers_from_environment() {
  std::vector<std::string> out;
  const char* text = std::getenv("EJKERNEL_PERSISTENT_CACHE_LAYERS");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    if (const auto path = rest.substr(0, end); !path.empty()) out.emplace_back(path);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return out;
}

// nullopt if the file is good, or gone.
template <class Read>
std::optional<BadFile> judge_file(const std::string& path, int known_schema, Read read) {
  using enum BadFile::Kind;
  constexpr uintmax_t read_limit = uintmax_t{16} << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) return std::nullopt;
  if (!error && size > read_limit) return BadFile{path, unreadable, "it is larger than 16 MiB"};
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (error || !file) return BadFile{path, unreadable, "it cannot be read"};
  try {
    const Value document = parse_json(text);
    const Value* schema = document.find("schema");
    const bool is_newer =
        schema != nullptr && schema->is_int() && schema->as_double() > known_schema;
    const bool wrong = detail::checksum_of(text, document) == detail::Checksum::wrong;
    if (is_newer && !wrong)
      return BadFile{path, newer,
                     "it was written by a newer version (schema " + stable_json(*schema) + ")"};
    if (!is_newer) read(document);
    if (wrong) return BadFile{path, altered, "its checksum is wrong"};
  } catch (const Error& problem) {
    return BadFile{path, damaged, problem.what()};
  }
  return std::nullopt;
}

template <class Read>
void look_for_bad_files(const std::string& folder, int known_schema, Read read,
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
      if (auto bad = judge_file(path.string(), known_schema, read)) out.push_back(std::move(*bad));
  }
}

auto order_of(const EntryId& id) { return std::tie(id.device, id.op, id.key, id.spec); }

}  // namespace

WarningSink Problems::sink() {
  return [list = list_](const std::string& message) {
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
                                  "\" is no key: give the first digits of one (`ejk ls` "
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

bool matches(const Filter& filter, const EntryId& id) {
  if (!detail::op_matches(id.op, filter.ops)) return false;
  if (filter.device == "this" && detail::device_here(id.device) == nullptr) return false;
  if (!filter.device.empty() && filter.device != "this" &&
      !id.device.starts_with(device_named(filter.device)))
    return false;
  if (filter.key.empty()) return true;
  if (const auto label = parse_label(filter.key)) return id.op == label->op && id.key == label->key;
  const size_t colon = filter.key.rfind(':');
  if (colon == std::string::npos) return id.key.starts_with(filter.key);
  return detail::op_matches(id.op, filter.key.substr(0, colon)) &&
         id.key.starts_with(filter.key.substr(colon + 1));
}

std::string store_path(const std::string& given) {
  const std::string path = given.empty() ? default_store_path() : base::expand_home(given);
  if (path.empty())
    throw Failure(exit_failed,
                  "there is no place for a store: give --store DIR, or set "
                  "EJKERNEL_PERSISTENT_CACHE_DIR or HOME");
  return path;
}

std::vector<std::string> store_paths(const std::string& given) {
  const std::string path = store_path(given);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_directory(status))
    throw Failure(exit_failed, path + " is not a directory, so it is no store");
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

std::vector<Held> read_entries(const std::vector<std::string>& paths, const Filter& filter,
                               Problems& problems) {
  std::vector<Held> out;
  Progress progress;
  for (const std::string& path : paths) {
    DirectoryStore store(path,
                         {.read_only = true, .on_warning = problems.sink(), .environment = {}});
    store.for_each("", [&](const Entry& entry) {
      if (matches(filter, entry.id)) out.push_back({entry, path, store.file_of(entry.id), false});
      progress.show("reading " + path + ": " + std::to_string(out.size()) + " entries");
      return true;
    });
  }
  // A failed tuning does not hide an answer behind it.
  std::set<std::string> answered;
  for (Held& held : out) {
    const EntryId& id = held.entry.id;
    const std::string call = stable_json(Value(Value::Array{id.device, id.op, id.key, id.spec}));
    if (held.entry.outcome == Outcome::failed) held.hidden = answered.contains(call);
    else held.hidden = !answered.insert(call).second;
  }
  std::ranges::stable_sort(out, [](const Held& a, const Held& b) {
    return order_of(a.entry.id) < order_of(b.entry.id);
  });
  return out;
}

std::string records_of(const std::string& given) {
  return given.empty() ? default_recording_path() : store_path(given) + "/recorded";
}

std::vector<BadFile> bad_files(const std::string& store, const std::string& records) {
  std::vector<BadFile> out;
  look_for_bad_files(
      store + "/v1", entry_schema, [](const Value& v) { (void)entry_from_document(v); }, out);
  if (!records.empty())
    look_for_bad_files(
        records + "/v1", record_schema, [](const Value& v) { (void)record_from_document(v); }, out);
  std::ranges::sort(out, {}, &BadFile::path);
  return out;
}

std::shared_ptr<PersistentCache> open_layers(const std::string& given, bool read_only,
                                             Problems& problems) {
  std::vector<std::shared_ptr<Store>> layers;
  std::vector<std::string> paths = {store_path(given)};
  if (given.empty())
    for (const std::string& layer : layers_from_environment()) paths.push_back(layer);
  for (const std::string& path : paths)
    layers.push_back(std::make_shared<DirectoryStore>(
        path, DirectoryStore::Options{.read_only = read_only || !layers.empty(),
                                      .on_warning = problems.sink(),
                                      .environment = {}}));
  return std::make_shared<PersistentCache>(std::move(layers));
}

std::shared_ptr<PersistentCache> existing_layers(const std::string& given, Problems& problems) {
  static_cast<void>(store_paths(given));
  return open_layers(given, true, problems);
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
                        {"hidden", held.hidden}});
}

}  // namespace ejk::cli
