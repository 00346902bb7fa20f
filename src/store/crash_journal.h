// SPDX-License-Identifier: Apache-2.0
// Remembers, beyond the death of a process, which config it was running.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ejk/store.h>

#include "base/directory.h"

namespace ejk::detail {

// Intents and quarantine of one tuning, in the folders `journal` and `quarantine` of a store.
//
// An intent that its process left behind makes a suspect and no more: Ctrl-C, the OOM killer or a
// power cut may have ended that process. Only `condemn` keeps a config from being run.
//
// Never throws for what the file system does: a failure is a warning, once, and from then on
// nothing is kept. A store that may not be written is not a failure. For one thread.
class Journal {
 public:
  // `store_path`: "" keeps nothing. Collects what dead processes left behind.
  Journal(std::string store_path, EntryId id, Value environment, WarningSink warn = {});
  ~Journal();  // a normal end: nothing is left behind
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Before a config's first run in this process, and after it came back. One write each, not
  // flushed: it survives the process, which is what a config can end.
  void intend(const Value& config);
  void done();

  // Configs, as stable_json, that dead processes were running for the same op and device, and how
  // many of them.
  std::map<std::string, int> suspects() const;
  // Passed in a child: no suspect any more.
  void acquit(const Value& config);

  // After a fatal signal that came again beside a passing control.
  void condemn(const Value& config, std::string why);
  // Why it was condemned for this call in this environment; nullopt if it was not.
  std::optional<std::string> condemned(const Value& config) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The record of suspects of one op and device, in a file of the journal.
struct SuspectsFile {
  std::string name, device, op;
  std::map<std::string, int> suspects;  // configs as stable_json, and how many processes they ended
};
// Held while such a file is changed; nullptr if it cannot be had.
std::unique_ptr<base::FileLock> lock_suspects(const std::string& store_path);
// A folder of a store: "journal", "quarantine", ...
base::Directory folder_in(const std::string& store_path, const char* name,
                          base::Absent absent = base::Absent::fails);
// All of a store. Other files are passed over with a warning.
std::vector<SuspectsFile> suspects_files(const std::string& store_path, const WarningSink& warn);

// The config that a process was running when it died, by the intent it left in a store that no
// tuning has looked at since; nullopt if it left none. Changes nothing.
std::optional<Value> left_running(const std::string& store_path, int64_t process);

}  // namespace ejk::detail
