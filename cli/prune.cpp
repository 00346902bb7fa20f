// SPDX-License-Identifier: Apache-2.0
// ejk prune: entries and files that are of no more use.
#include <string.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include <ejk/device.h>
#include <ejk/tuner.h>

#include "platform/here.h"
#include "store/op_name.h"
#include "verbs.h"

namespace ejk::cli {
namespace fs = std::filesystem;

namespace {

// Seconds of "12h", "30d", "8w".
double age_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double seconds = unit == "h" ? 3600 : unit == "d" ? 86400 : unit == "w" ? 604800 : 0;
  if (error != std::errc() || seconds == 0 || !(number >= 0) || number > 1e6)
    throw Failure(exit_usage, "--older-than: got " + text +
                                  "; expected a number followed by h, d or w, such as 30d");
  return number * seconds;
}

// Of a UTC time as entries keep it; 0 if it is none.
time_t seconds_of(const std::string& utc) {
  tm parts{};
  return strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr ? 0 : timegm(&parts);
}

std::pair<std::string, std::string> name_and_version(const std::string& op) {
  const std::string name(detail::without_version(op));
  return {name, name.size() < op.size() ? op.substr(name.size() + 2) : ""};
}

// "10" is newer than "9", and "1.10" than "1.9".
bool older_version(const std::string& a, const std::string& b) {
  return strverscmp(a.c_str(), b.c_str()) < 0;
}

std::string why_prune(const PruneOptions& options, const Entry& entry, time_t oldest,
                      const std::map<std::string, std::string>& newest_versions) {
  if (options.all) return "all";
  if (options.failed && entry.outcome == Outcome::failed) return "failed";
  if (options.other_devices && detail::device_here(entry.id.device) == nullptr)
    return "other device";
  const auto [name, version] = name_and_version(entry.id.op);
  if (options.old_versions && older_version(version, newest_versions.at(name)))
    return "op has version " + newest_versions.at(name);
  const time_t time = seconds_of(entry.evidence.time);
  if (!options.older_than.empty() && time > 0 && time < oldest) return "of " + entry.evidence.time;
  return "";
}

}  // namespace

int prune_verb(const PruneOptions& options, Output& out) {
  const bool entries_too = options.all || options.failed || options.other_devices ||
                           options.old_versions || !options.older_than.empty();
  if (!entries_too && !options.damaged)
    throw Failure(exit_usage,
                  "prune: got nothing to remove; expected --older-than, --failed, --other-devices, "
                  "--old-versions, --damaged, or --all");
  const time_t oldest = options.older_than.empty()
                            ? 0
                            : time(nullptr) - static_cast<time_t>(age_of(options.older_than));
  Problems problems;
  const std::string path = store_paths(options.store).front();  // layers are not ours
  std::map<std::string, std::string> newest;
  std::vector<Held> entries;
  if (entries_too) entries = read_entries({path}, {}, problems);
  for (const Held& held : entries) {
    const auto [name, version] = name_and_version(held.entry.id.op);
    const auto [it, added] = newest.emplace(name, version);
    if (!added && older_version(it->second, version)) it->second = version;
  }

  DirectoryStore store(
      path, {.read_only = options.dry_run, .on_warning = problems.sink(), .environment = {}});
  const StopOnInterrupt stop;
  Table table({{"OP"}, {"KEY"}, {"WHY"}, {"DEVICE"}});
  Value list = Value::array(), files = Value::array();
  size_t failed = 0;
  const auto remove = [&](const std::string& file) {
    std::error_code error;
    if (options.dry_run || fs::remove(file, error)) return true;
    if (!error) return false;  // somebody else has
    ++failed;
    problems.sink()("cannot remove " + file + ": " + error.message());
    return false;
  };
  Progress progress;
  for (const Held& held : entries) {
    if (stop.requested()) break;
    progress.show("removing from " + path + ": " + std::to_string(list.as_array().size()) +
                  " entries");
    if (!matches(options.filter, held.entry.id)) continue;
    const std::string why = why_prune(options, held.entry, oldest, newest);
    if (why.empty()) continue;
    // The file may have been replaced since it was listed: remove it only if it is still the entry
    // that was examined.
    const auto present = entry_in_place_of(store, held.entry);
    if (!present || entry_to_document(*present) != entry_to_document(held.entry)) continue;
    if (!remove(held.file)) continue;
    std::error_code ignored;  // the folder of the call, if it is empty
    if (!options.dry_run) fs::remove(fs::path(held.file).parent_path(), ignored);
    table.add({held.entry.id.op, held.entry.id.key, why, held.entry.id.device});
    Value summary = entry_summary(held);
    summary["why"] = why;
    list.push_back(std::move(summary));
  }
  if (options.damaged && !stop.requested())
    for (const BadFile& file : bad_files(path, records_of(options.store))) {
      if (file.kind != BadFile::Kind::damaged) continue;
      if (!remove(file.path)) continue;
      files.push_back(file.path);
      out.line(file.path + ": " + file.why);
    }
  if (!table.empty()) out.table(table);
  out.line(std::string(options.dry_run ? "would remove " : "removed ") +
           count_text(list.as_array().size(), "entry", "entries") + " and " +
           count_text(files.as_array().size(), "damaged file", "damaged files") + " from " + path);
  if (failed > 0) out.line(std::to_string(failed) + " could not be removed");
  out.document(Value::object({{"store", path},
                              {"dry_run", options.dry_run},
                              {"removed", std::move(list)},
                              {"files", std::move(files)},
                              {"failed", failed},
                              {"problems", problems.to_value()}}));
  if (stop.requested()) return exit_interrupted;
  return failed > 0 ? exit_failed : exit_ok;
}

}  // namespace ejk::cli
