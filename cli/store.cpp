// SPDX-License-Identifier: Apache-2.0
// ejk store upgrade: entries of an older format of a store, in their new places.
#include <ejk/tuner.h>

#include "verbs.h"

namespace ejk::cli {

int store_upgrade_verb(const StoreOptions& options, Output& out) {
  Problems problems;
  const std::string path = store_paths(options.store).front();  // layers are not ours
  DirectoryStore store(path,
                       {.read_only = false, .on_warning = problems.sink(), .environment = {}});
  const StopOnInterrupt stop;
  Progress progress;
  const auto [moved, left] = store.upgrade([&](size_t done, size_t of) {
    progress.show(path + ": " + std::to_string(done) + " of " + std::to_string(of) + " entries");
    return !stop.requested();
  });
  if (moved + left == 0 && !stop.requested())
    out.line("nothing to do: " + path + " has no entries of an older format");
  else out.line(path + ": " + count_text(moved, "entry", "entries") + " brought to format v2");
  if (left > 0)
    out.line(count_text(left, "file stays", "files stay") + " as they are; ejk doctor names them");
  if (stop.requested()) out.line("interrupted: the same command goes on with the rest");
  out.document(Value::object({{"store", path},
                              {"moved", moved},
                              {"left", left},
                              {"interrupted", stop.requested().load()},
                              {"problems", problems.to_value()}}));
  if (stop.requested()) return exit_interrupted;
  return left > 0 ? exit_failed : exit_ok;
}

}  // namespace ejk::cli
