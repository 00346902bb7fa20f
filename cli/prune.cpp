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

struct PruneOptions {
  std::string store;
  Filter filter;
  std::string older_than;  // "30d"
  bool failed = false;
  bool other_devices = false;
  bool old_versions = false;
  bool damaged = false;
  bool all = false;
  bool dry_run = false;
};

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

// Of a UTC time as entries keep it; 0 for any other text.
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

std::map<std::string, std::string> newest_versions_of(const std::vector<Held>& entries) {
  std::map<std::string, std::string> newest;
  for (const Held& held : entries) {
    const auto [name, version] = name_and_version(held.entry.id.op);
    const auto [it, added] = newest.emplace(name, version);
    if (!added && older_version(it->second, version)) it->second = version;
  }
  return newest;
}

// Removes from one store, and remembers what.
class Pruning {
 public:
  Pruning(const PruneOptions& options, std::string path, Problems& problems)
      : options_(options), path_(std::move(path)), problems_(problems) {}

  void entries(const std::vector<Held>& all, time_t oldest) {
    DirectoryStore store(
        path_, {.read_only = options_.dry_run, .on_warning = problems_.sink(), .environment = {}});
    const auto newest = newest_versions_of(all);
    Progress progress;
    for (const Held& held : all) {
      if (stop_.requested()) return;
      progress.show("removing from " + path_ + ": " + std::to_string(list_.as_array().size()) +
                    " entries");
      if (!matches(options_.filter, held.entry.id)) continue;
      const std::string why = why_prune(options_, held.entry, oldest, newest);
      if (!why.empty()) remove_entry(store, held, why);
    }
  }

  void damaged_files(Output& out) {
    for (const BadFile& file : bad_files(path_, records_of(options_.store))) {
      if (file.kind != BadFile::Kind::damaged || !remove(file.path)) continue;
      files_.push_back(file.path);
      out.line(file.path + ": " + file.why);
    }
  }

  bool is_stopped() const { return stop_.requested(); }

  int finish(Output& out) {
    if (!table_.empty()) out.table(table_);
    out.line(std::string(options_.dry_run ? "would remove " : "removed ") +
             count_text(list_.as_array().size(), "entry", "entries") + " and " +
             count_text(files_.as_array().size(), "damaged file", "damaged files") + " from " +
             path_);
    if (failed_ > 0) out.line(std::to_string(failed_) + " could not be removed");
    out.document(Value::object({{"store", path_},
                                {"dry_run", options_.dry_run},
                                {"removed", std::move(list_)},
                                {"files", std::move(files_)},
                                {"failed", failed_},
                                {"problems", problems_.to_value()}}));
    if (stop_.requested()) return exit_interrupted;
    return failed_ > 0 ? exit_failed : exit_ok;
  }

 private:
  void remove_entry(DirectoryStore& store, const Held& held, const std::string& why) {
    // The file may have been replaced since it was listed: remove it only if it is still the entry
    // that was examined.
    const auto present = entry_in_place_of(store, held.entry);
    if (!present || entry_to_document(*present) != entry_to_document(held.entry)) return;
    if (!remove(held.file)) return;
    std::error_code ignored;  // the folder of the call, if it is empty
    if (!options_.dry_run) fs::remove(fs::path(held.file).parent_path(), ignored);
    table_.add({held.entry.id.op, held.entry.id.key, why, held.entry.id.device});
    Value summary = entry_summary(held);
    summary["why"] = why;
    list_.push_back(std::move(summary));
  }

  bool remove(const std::string& file) {
    std::error_code error;
    if (options_.dry_run || fs::remove(file, error)) return true;
    if (!error) return false;  // another process removed it
    ++failed_;
    problems_.sink()("cannot remove " + file + ": " + error.message());
    return false;
  }

  const PruneOptions& options_;
  const std::string path_;
  Problems& problems_;
  const StopOnInterrupt stop_;
  Table table_{{{"OP"}, {"KEY"}, {"WHY"}, {"DEVICE"}}};
  Value list_ = Value::array(), files_ = Value::array();
  size_t failed_ = 0;
};

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
  std::vector<Held> entries;
  if (entries_too) entries = read_entries({path}, {}, problems);
  Pruning pruning(options, path, problems);
  pruning.entries(entries, oldest);
  if (options.damaged && !pruning.is_stopped()) pruning.damaged_files(out);
  return pruning.finish(out);
}

}  // namespace

void add_prune(Verbs& verbs) {
  verbs.add<PruneOptions>(
      {"prune", "Remove entries that are not needed any more",
       "ejk prune --older-than 90d --dry-run"},
      prune_verb, [](const VerbLine& line, PruneOptions& to) {
        line.directory(to.store);
        line.filter(to.filter);
        line.value("--key", to.filter.key, "KEY", "Only this key");
        line.value("--older-than", to.older_than, "AGE",
                   "Only entries measured longer ago than this: 12h, 30d, 8w");
        line.flag("--failed", to.failed, "Tunings in which every candidate was rejected");
        line.flag("--other-devices", to.other_devices,
                  "Entries of devices that are not on this machine");
        line.flag("--old-versions", to.old_versions,
                  "Entries of ops that have a newer version here");
        line.flag("--damaged", to.damaged,
                  "Damaged files of entries and records, and files that were set aside");
        line.flag("--all", to.all, "All entries, or all that --op, --device and --key select");
        line.flag("--dry-run", to.dry_run, "Remove nothing, say what would go");
      });
}

}  // namespace ejk::cli
