// SPDX-License-Identifier: Apache-2.0
// ejk snapshot: choices as one file that never changes, named by its SHA-256, for all processes of
// a run.
#include "store/snapshot.h"

#include <map>
#include <utility>

#include "files.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct SnapshotOptions {
  std::string store;
  Filter filter;
  std::string name;  // HASH, PLACE#HASH; of show also a file
  std::string file;  // of publish and fetch; "": the store
};

// A database or a directory: where snapshots of this line are kept.
std::string place_of(const std::string& given) {
  const std::string shared = shared_or(given);
  return is_shared(shared) ? shared : store_path(given);
}

detail::SnapshotAddress address_of(const SnapshotOptions& options) {
  auto address = words_read([&] { return detail::read_snapshot_address(options.name); });
  if (!address.place.empty()) static_cast<void>(shared_or(address.place));
  if (address.place.empty() && !options.store.empty()) address.place = place_of(options.store);
  return address;
}

std::string launch_line(const std::string& place, const std::string& name) {
  return std::string(detail::snapshot_variable) + "=" + (place.empty() ? "" : place + "#") + name;
}

int list(const SnapshotOptions& options, Output& out) {
  const std::string place = place_of(options.store);
  Table table({{"SNAPSHOT"}, {"BYTES", Table::Align::right}, {"AUTHOR"}, {"PUBLISHED"}});
  Value found = Value::array();
  for (const auto& [name, bytes, author, time] : detail::published_snapshots(place)) {
    table.add({name, std::to_string(bytes), author, time});
    found.push_back(Value::object(
        {{"snapshot", name}, {"bytes", bytes}, {"author", author}, {"published", time}}));
  }
  if (table.empty())
    out.line("no snapshots in " + shown_store(place) + " (ejk snapshot publish makes one)");
  else out.table(table);
  out.document(Value::object({{"store", shown_store(place)}, {"snapshots", std::move(found)}}));
  return exit_ok;
}

int snapshot_publish_verb(const SnapshotOptions& options, Output& out) {
  Problems problems;
  std::vector<Entry> entries;
  for (Held& held :
       read_entries(stores_to_read(options.store), options.filter, problems, Detail::choice))
    if (!held.hidden && held.entry.outcome != Outcome::failed)
      entries.push_back(std::move(held.entry));
  if (!problems.list().empty())
    throw Failure(exit_failed, "nothing is published: not everything could be read");
  const size_t count = entries.size();
  if (count == 0)
    throw Failure(exit_nothing, "there are no such choices to publish in " +
                                    store_name(options.store) + "; `ejk ls` lists what is there");
  const std::string text = detail::snapshot_text(std::move(entries));
  const std::string name = detail::name_of_snapshot(text);
  const std::string place = place_of(options.store);
  if (options.file.empty()) detail::publish_snapshot(text, place);
  else write_whole(options.file, text);
  const std::string where = options.file.empty() ? shown_store(place) : options.file;
  out.line(name);
  out.line(count_text(count, "choice", "choices") + " in " + where + "; launch with");
  out.line(launch_line(options.file, name));
  out.document(Value::object(
      {{"snapshot", name}, {"choices", count}, {"bytes", text.size()}, {"where", where}}));
  return exit_ok;
}

int snapshot_fetch_verb(const SnapshotOptions& options, Output& out) {
  const auto address = address_of(options);
  const std::string text = detail::fetch_snapshot(address);
  std::string where = options.file;
  if (options.file == "-") {
    if (!out.json()) return out.raw(text), exit_ok;
  } else if (options.file.empty()) {
    where = store_path("");
    detail::publish_snapshot(text, where);
  } else {
    write_whole(options.file, text);
  }
  out.line(address.name + " is in " + where + "; launch with");
  out.line(launch_line(options.file, address.name));
  out.document(
      Value::object({{"snapshot", address.name}, {"bytes", text.size()}, {"where", where}}));
  return exit_ok;
}

int snapshot_show_verb(const SnapshotOptions& options, Output& out) {
  if (options.name.empty()) return list(options, out);
  const bool named = options.name.size() == 64 || options.name.starts_with("sha256:") ||
                     options.name.find('#') != std::string::npos;
  const std::string text =
      named ? detail::fetch_snapshot(address_of(options)) : read_whole(options.name);
  const std::string name = detail::name_of_snapshot(text);
  const auto entries = detail::entries_of_snapshot(text);
  Value choices = Value::array();
  Table table({{"DEVICE"}, {"OP"}, {"KEY"}, {"CONFIG"}, {"CALL"}});
  for (const Entry& entry : entries) {
    table.add({entry.id.device, entry.id.op, entry.id.key, config_text(entry.config),
               call_text(entry.id.spec)});
    choices.push_back(entry_summary({entry, "snapshot " + name, ""}));
  }
  out.line("snapshot " + name + ": " + count_text(entries.size(), "choice", "choices"));
  if (!table.empty()) out.table(table);
  out.document(
      Value::object({{"snapshot", name}, {"bytes", text.size()}, {"choices", std::move(choices)}}));
  return exit_ok;
}

}  // namespace

void add_snapshot(Verbs& verbs) {
  Verbs snapshot = verbs.group(
      "snapshot", "Make, get and show snapshots: choices in one file that never changes");
  snapshot.add<SnapshotOptions>(
      {"publish", "Make a snapshot of what a store answers here, and print its name",
       "ejk snapshot publish --device this"},
      snapshot_publish_verb, [](const VerbLine& line, SnapshotOptions& to) {
        line.value("file", to.file, "FILE", "Write it there; default: into the store");
        line.store(to.store);
        line.filter(to.filter);
      });
  snapshot.add<SnapshotOptions>({"fetch", "Get a snapshot by its name, and check it",
                                 "ejk snapshot fetch HASH choices.jsonl"},
                                snapshot_fetch_verb, [](const VerbLine& line, SnapshotOptions& to) {
                                  line.value("name", to.name, "HASH",
                                             "HASH, or PLACE#HASH: in that file or store")
                                      .required();
                                  line.value("file", to.file, "FILE",
                                             "Write it there, - is standard output; default: keep "
                                             "it in the store of this machine");
                                  line.store(to.store);
                                });
  snapshot.add<SnapshotOptions>(
      {"show", "List the snapshots of a store, or the choices in one", "ejk snapshot show"},
      snapshot_show_verb, [](const VerbLine& line, SnapshotOptions& to) {
        line.value("name", to.name, "HASH", "HASH, PLACE#HASH or a file; default: list all");
        line.store(to.store);
      });
}

}  // namespace ejk::cli
