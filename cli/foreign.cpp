// SPDX-License-Identifier: Apache-2.0
#include "foreign.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include <ejk/error.h>
#include <ejk/names.h>

#include "files.h"
#include "output.h"
#include "store/entry_file.h"

namespace ejk::cli {
namespace fs = std::filesystem;

namespace {

constexpr size_t max_damaged_reports = 20;

struct Reading {
  const ForeignOptions& options;
  const WarningSink& warn;
  const std::function<bool(const Entry&)>& visit;
  ForeignCounts counts = {};
  bool stopped = false;

  void take(const Entry& entry) {
    // It would take the place of the call that the spec is of, and answer none.
    if (const EntryId& id = entry.id; !id.spec.empty() && id.key != short_hash(id.spec) &&
                                      id.spec != stable_json(Value::object({{"key", id.key}})))
      return damaged("[" + id.op + "] the key " + id.key + " of an entry is not that of its spec");
    stopped = stopped || !visit(entry);
  }
  void damaged(const std::string& what) {
    if (++counts.damaged <= max_damaged_reports) warn(what);
  }
};

void read_export(const std::string& name, std::string_view text, Reading& reading) {
  size_t number = 0;
  while (!text.empty() && !reading.stopped) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (++number == 1 || line.empty()) continue;
    try {
      reading.take(entry_from_document(parse_json(line)));
    } catch (const Error& error) {
      reading.damaged(name + ", line " + std::to_string(number) + ": " + error.what());
    }
  }
}

// A member of a cache of ejkernel: the config itself or, where its provenance is kept, an object
// with the config and where it came from.
struct EjkernelConfig {
  Value config;
  std::string provenance;  // "" if it is not said
};
EjkernelConfig ejkernel_config(const Value& value) {
  const Value *config = nullptr, *provenance = nullptr;
  for (const char* name : {"config", "cfg", "value"})
    if (config == nullptr) config = value.find(name);
  for (const char* name : {"provenance", "__ejk_provenance__", "origin", "source"})
    if (provenance == nullptr) provenance = value.find(name);
  if (config == nullptr || provenance == nullptr) return {value, ""};
  if (provenance->is_string()) return {*config, provenance->as_string()};
  // Objects that say more than where it came from keep the word in a member of their own.
  for (const char* name : {"origin", "source", "kind", "level"})
    if (const Value* word = provenance->find(name); word && word->is_string())
      return {*config, word->as_string()};
  return provenance->is_object() ? EjkernelConfig{*config, "unknown"} : EjkernelConfig{value, ""};
}

void read_ejkernel(const std::string& name, const Value& document, Reading& reading) {
  for (const auto& [member, value] : document.as_object().members) {
    if (reading.stopped) return;
    try {
      const auto [config, provenance] = ejkernel_config(value);
      if (config.is_null()) continue;  // "None" was never an answer there either
      if (provenance.starts_with("heuristic") && !reading.options.with_heuristics) {
        ++reading.counts.heuristics;
        continue;
      }
      Entry entry;
      entry.id = ejkernel_id(member);
      entry.config = config;
      entry.provenance = name_of(Provenance::imported);
      entry.device = Value::object();
      entry.environment = Value::object();
      entry.evidence.complete = false;  // so that whatever is measured takes its place
      entry.evidence.strategy = "imported";
      entry.evidence.data =
          provenance.empty() ? "cache of ejkernel" : "cache of ejkernel: " + provenance;
      reading.take(entry);
    } catch (const Error& error) {
      reading.damaged(name + ", member \"" + member + "\": " + error.what());
    }
  }
}

void read_document(const std::string& name, const Value& document, Reading& reading) {
  if (document.find("schema") != nullptr && document.find("op") != nullptr)
    return reading.take(entry_from_document(document));
  const auto& members = document.as_object().members;
  const auto looks_right = [](const auto& member) {
    return std::ranges::count(member.first, '|') >= 2;
  };
  if (members.empty() || !std::ranges::any_of(members, looks_right))
    throw Error(ErrorKind::parse, "it is JSON, but not an entry, an export or a cache of ejkernel");
  read_ejkernel(name, document, reading);
}

void read_text(const std::string& name, const std::string& text, Reading& reading) {
  const std::string_view first_line = std::string_view(text).substr(0, text.find('\n'));
  std::optional<Value> head;
  try {
    head = parse_json(first_line);
  } catch (const Error&) {  // more than a line
  }
  if (const Value* version = head ? head->find(export_member) : nullptr) {
    if (!version->is_int() || version->as_int() > export_version)
      throw Error(ErrorKind::parse, "it was exported by a newer version of this tool");
    return read_export(name, text, reading);
  }
  // A file of a store has its candidates in a second document.
  if (text.find(detail::end_of_document) + detail::end_of_document.size() < text.size())
    if (auto read = detail::read_entry(text, Detail::all); read.entry)
      return reading.take(*read.entry);
  read_document(name, parse_json(text), reading);
}

void read_file(const std::string& name, Reading& reading) {
  read_text(name, read_whole(name), reading);
}

void read_folder(const std::string& path, Reading& reading) {
  if (fs::is_directory(path + "/v1") || fs::is_directory(path + "/v2")) {
    DirectoryStore store(path, {.read_only = true,
                                .on_warning = [&](const std::string& why) { reading.damaged(why); },
                                .environment = {}});
    store.for_each("", [&](const Entry& entry) {
      reading.take(entry);
      return !reading.stopped;
    });
    return;
  }
  std::vector<std::string> files;
  for (const auto& file : fs::directory_iterator(path))
    if (file.path().extension() == ".json") files.push_back(file.path().string());
  std::ranges::sort(files);
  if (files.empty())
    throw Failure(exit_nothing,
                  path + " is not a store (it has no folder v1 or v2) and has no .json files");
  for (const std::string& file : files) {
    if (reading.stopped) return;
    try {
      read_file(file, reading);
    } catch (const Error& error) {
      reading.damaged(file + ": " + error.what());
    }
  }
}

}  // namespace

EntryId ejkernel_id(const std::string& name) {
  std::vector<size_t> bars;
  for (size_t i = 0; i < name.size(); ++i)
    if (name[i] == '|') bars.push_back(i);
  if (bars.size() < 2) throw Error(ErrorKind::parse, "a member's name is not DEVICE|OP|KEY");
  const size_t device_end = bars.size() == 2 ? bars[0] : bars[1], op_end = bars.back();
  EntryId id{name.substr(0, device_end), name.substr(device_end + 1, op_end - device_end - 1),
             name.substr(op_end + 1), ""};
  if (id.op.empty() || id.key.empty())
    throw Error(ErrorKind::parse, "a member's name is not DEVICE|OP|KEY");
  return id;
}

ForeignCounts read_foreign_text(const std::string& text, const ForeignOptions& options,
                                const WarningSink& warn,
                                const std::function<bool(const Entry&)>& visit) {
  Reading reading{options, warn, visit};
  read_text("the text", text, reading);
  return reading.counts;
}

ForeignCounts read_foreign(const std::string& path, const ForeignOptions& options,
                           const WarningSink& warn,
                           const std::function<bool(const Entry&)>& visit) {
  Reading reading{options, warn, visit};
  try {
    std::error_code error;
    if (path != "-" && fs::is_directory(path, error)) read_folder(path, reading);
    else read_file(path, reading);
  } catch (const Error& error) {
    throw Failure(exit_failed, "cannot read entries from " + path + ": " + error.what());
  } catch (const fs::filesystem_error& error) {
    throw Failure(exit_failed, "cannot read " + path + ": " + error.code().message());
  }
  if (reading.counts.damaged > max_damaged_reports)
    warn(path + ": " + std::to_string(reading.counts.damaged - max_damaged_reports) +
         " more could not be read");
  return reading.counts;
}

}  // namespace ejk::cli
