// SPDX-License-Identifier: Apache-2.0
// ejk import, ejk merge: entries from elsewhere into a store. What was measured there stays, else
// the better evidence.
#include <map>

#include <ejk/device.h>
#include <ejk/names.h>
#include <ejk/tuner.h>

#include "foreign.h"
#include "platform/here.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct ImportOptions {
  std::string store;
  std::vector<std::string> files;
  std::string as_device;  // file entries under this device
  bool replace = false;
  bool dry_run = false;
  bool with_heuristics = false;
};

struct MergeOptions {
  std::string into;
  std::vector<std::string> from;
  bool dry_run = false;
};

struct Counts {
  size_t read = 0, added = 0, replaced = 0, kept = 0, failed = 0, damaged = 0, heuristics = 0;
  std::map<std::string, size_t> other_devices;  // entries that no device here will use
};

// What an entry is now filed under, if the user says so.
void move_to_device(Entry& entry, const std::string& device) {
  if (device.empty() || entry.id.device == device) return;
  entry.id.device = device;
  const Device* here = detail::device_here(device);
  entry.device = here != nullptr ? here->identity : Value::object();
  if (is_measured(entry)) entry.provenance = name_of(Provenance::transferred);
}

// It was not measured here, whatever it says of itself.
void mark(Entry& entry) {
  if (!is(entry.provenance, Provenance::transferred))
    entry.provenance = name_of(Provenance::imported);
}

void put(DirectoryStore& store, const Entry& entry, bool replace, bool dry_run, Counts& counts) {
  const auto present = entry_in_place_of(store, entry);
  if (present && !replace && !better_evidence(entry, *present)) ++counts.kept;
  else if (!dry_run && !store.put(entry, replace ? IfPresent::replace : IfPresent::keep_better))
    ++counts.failed;
  else ++(present ? counts.replaced : counts.added);
}

int finish(const Counts& counts, const std::string& into, bool dry_run, bool interrupted,
           const Problems& problems, Output& out) {
  out.line(std::string(dry_run ? "would go to " : "into ") + into + ": " +
           std::to_string(counts.added) + " new, " + std::to_string(counts.replaced) +
           " in place of weaker ones, " + std::to_string(counts.kept) +
           " left out (the store has as good or better)");
  if (counts.heuristics > 0)
    out.line(std::to_string(counts.heuristics) +
             " left out because they are heuristics, not measured (--with-heuristics takes them)");
  if (counts.failed > 0) out.line(std::to_string(counts.failed) + " could not be written");
  if (counts.damaged > 0) out.line(std::to_string(counts.damaged) + " could not be read");
  Value others = Value::object();
  for (const auto& [device, count] : counts.other_devices) {
    others[device] = count;
    out.line(std::to_string(count) + " are for the device " + device +
             ", which is not this one (--as-device this files them under this one)");
  }
  if (interrupted) out.line("interrupted: the rest was not looked at");
  out.document(Value::object({{"into", into},
                              {"dry_run", dry_run},
                              {"read", counts.read},
                              {"added", counts.added},
                              {"replaced", counts.replaced},
                              {"kept", counts.kept},
                              {"failed", counts.failed},
                              {"damaged", counts.damaged},
                              {"heuristics", counts.heuristics},
                              {"other_devices", std::move(others)},
                              {"interrupted", interrupted},
                              {"problems", problems.to_value()}}));
  if (interrupted) return exit_interrupted;
  return counts.failed + counts.damaged > 0 ? exit_failed : exit_ok;
}

int bring(const std::string& into, const std::vector<std::string>& from,
          const ImportOptions& options, Output& out) {
  Problems problems;
  DirectoryStore store(
      into, {.read_only = options.dry_run, .on_warning = problems.sink(), .environment = {}});
  const StopOnInterrupt stop;
  Counts counts;
  Progress progress;
  const std::string device = device_named(options.as_device);
  for (const std::string& path : from) {
    const auto found = read_foreign(
        path, {.with_heuristics = options.with_heuristics}, problems.sink(), [&](Entry entry) {
          ++counts.read;
          move_to_device(entry, device);
          mark(entry);
          if (detail::device_here(entry.id.device) == nullptr)
            ++counts.other_devices[entry.id.device];
          put(store, entry, options.replace, options.dry_run, counts);
          progress.show(path + ": " + std::to_string(counts.read) + " entries");
          return !stop.requested();
        });
    counts.damaged += found.damaged;
    counts.heuristics += found.heuristics;
    if (stop.requested()) break;
  }
  return finish(counts, into, options.dry_run, stop.requested(), problems, out);
}

int import_verb(const ImportOptions& options, Output& out) {
  return bring(store_path(options.store), options.files, options, out);
}

int merge_verb(const MergeOptions& options, Output& out) {
  for (const std::string& path : options.from)
    if (store_path(path) == store_path(options.into))
      throw Failure(exit_usage, "cannot merge " + path + " into itself");
  ImportOptions import;
  import.dry_run = options.dry_run;
  return bring(store_path(options.into), options.from, import, out);
}

}  // namespace

void add_import(Verbs& verbs) {
  verbs.add<ImportOptions>(
      {"import", "Add entries from exports, stores or caches of ejkernel; measured entries stay",
       "ejk import tuned.jsonl --dry-run"},
      import_verb, [](const VerbLine& line, ImportOptions& to) {
        line.values("files", to.files, "FILE",
                    "Exports, entries, stores, caches; - is standard input")
            .required();
        line.directory(to.store);
        line.value("--as-device", to.as_device, "DEVICE",
                   "File them under this device: a fingerprint, or \"this\"");
        line.flag("--replace", to.replace, "Replace existing entries, measured ones too");
        line.flag("--with-heuristics", to.with_heuristics,
                  "Also take configs that a cache marks as heuristics");
        line.flag("--dry-run", to.dry_run, "Change nothing, say what would happen");
      });
}

void add_merge(Verbs& verbs) {
  verbs.add<MergeOptions>(
      {"merge", "Merge stores into one; its own measurements stay, else the better evidence",
       "ejk merge all_stores first_store second_store"},
      merge_verb, [](const VerbLine& line, MergeOptions& to) {
        line.value("into", to.into, "DIR", "The store that gets them").required();
        line.values("from", to.from, "FROM", "Stores or exports").required();
        line.flag("--dry-run", to.dry_run, "Change nothing, say what would happen");
      });
}

}  // namespace ejk::cli
