// SPDX-License-Identifier: Apache-2.0
// ejk export: entries as one file, a line each.
#include <ejk/device.h>

#include "files.h"
#include "foreign.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct ExportOptions {
  std::string store;
  Filter filter;
  std::string file = "-";
  bool without_candidates = false;
};

int export_verb(const ExportOptions& options, Output& out) {
  Problems problems;
  const auto entries = read_entries(stores_to_read(options.store), options.filter, problems);
  std::string text = stable_json(Value::object(
                         {{export_member, export_version}, {"library", library_version()}})) +
                     "\n";
  Value list = Value::array();
  for (const Held& held : entries) {
    if (held.hidden && !held.other_environment) continue;
    Entry entry = held.entry;
    if (options.without_candidates) entry.candidates.clear();
    list.push_back(entry_to_document(entry));
    text += to_json(list.as_array().back()) + "\n";
  }
  const size_t count = list.as_array().size();
  if (count == 0)
    throw Failure(exit_nothing, "there are no such entries to export in " +
                                    store_name(options.store) + "; `ejk ls` lists what is there");
  const int code = problems.list().empty() ? exit_ok : exit_failed;  // the rest is written
  if (options.file == "-") {
    if (!out.json()) out.raw(text);
    out.document(Value::object({{"entries", std::move(list)}, {"problems", problems.to_value()}}));
    return code;
  }
  write_whole(options.file, text);
  out.line(count_text(count, "entry", "entries") + " written to " + options.file);
  out.document(Value::object(
      {{"file", options.file}, {"entries", count}, {"problems", problems.to_value()}}));
  return code;
}

}  // namespace

void add_export(Verbs& verbs) {
  verbs.add<ExportOptions>(
      {"export", "Write entries into one file", "ejk export tuned.jsonl --device this"},
      export_verb, [](const VerbLine& line, ExportOptions& to) {
        line.value("file", to.file, "FILE", "The file; - is standard output").shows_default();
        line.store(to.store);
        line.filter(to.filter);
        line.value("--key", to.filter.key, "KEY", "Only this key");
        line.flag("--without-candidates", to.without_candidates,
                  "Leave out the measurements of the other candidates");
      });
}

}  // namespace ejk::cli
