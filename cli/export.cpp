// SPDX-License-Identifier: Apache-2.0
// ejk export: entries as one file, a line each.
#include <ejk/device.h>

#include "files.h"
#include "foreign.h"
#include "verbs.h"

namespace ejk::cli {

int export_verb(const ExportOptions& options, Output& out) {
  Problems problems;
  const auto entries = read_entries(store_paths(options.store), options.filter, problems);
  std::string text = stable_json(Value::object(
                         {{export_member, export_version}, {"library", library_version()}})) +
                     "\n";
  size_t count = 0;
  for (const Held& held : entries) {
    if (held.hidden) continue;
    Entry entry = held.entry;
    if (options.without_candidates) entry.candidates.clear();
    text += to_json(entry_to_document(entry)) + "\n";
    ++count;
  }
  if (count == 0) throw Failure(exit_nothing, "there are no such entries to export");
  if (options.file == "-") {
    out.raw(text);
    return exit_ok;
  }
  write_whole(options.file, text);
  out.line(std::to_string(count) + (count == 1 ? " entry" : " entries") + " written to " +
           options.file);
  out.document(Value::object(
      {{"file", options.file}, {"entries", count}, {"problems", problems.to_value()}}));
  return exit_ok;
}

}  // namespace ejk::cli
