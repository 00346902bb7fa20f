// SPDX-License-Identifier: Apache-2.0
// Stores as the tool sees them: layers that are only looked at, entries with their place.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/device.h>
#include <ejk/store.h>

#include "output.h"
#include "store/shared.h"

namespace ejk::cli {

// Warnings of stores: each said once, at once, and kept for --json.
class Problems {
 public:
  WarningSink sink();
  const std::vector<std::string>& list() const { return *list_; }
  Value to_value() const;

  bool is_database_away = false;  // in part at least: it could not be read to its end

 private:
  std::shared_ptr<std::vector<std::string>> list_ = std::make_shared<std::vector<std::string>>();
};

struct Held {
  Entry entry;
  std::string where;  // of the layer
  std::string file;
  bool hidden = false;             // another one answers the same call: of a layer in front,
  bool other_environment = false;  // or of the same layer and another environment
};

// Which entries a verb is about. Empty members: all.
struct Filter {
  std::vector<std::string> ops;  // "name" or "name@vVERSION"
  std::string device;            // "this": any that is here; "opencl:0"; how a fingerprint begins
  std::string key;               // how it begins, "OP:KEY" or a label
};

// The store, where its recorded calls are, and who runs them.
struct KernelOptions {
  std::string store;
  std::string recorded;              // folder; default: that of the store
  std::vector<std::string> plugins;  // shared libraries of kernels
};
bool matches(const Filter& filter, const EntryId& id);
// Which devices it asks for; empty: all.
std::function<bool(const std::string& device)> wanted_devices(const Filter& filter);
// What is missing if nothing has this key, and what to do.
std::string key_text(const std::string& key);
// Throws Failure(usage) for a key that cannot be one.
void check_key(const std::string& key);
// The fingerprint of the device of this machine that is called so: "opencl:0" as `ejk devices` says
// it, "this" for the CPU. Another name is a fingerprint already, or how one begins. Throws
// Failure(nothing) if there is no such device.
std::string device_named(const std::string& name);
// The device of this machine with that name, or whose fingerprint begins so; the CPU without one.
// Throws Failure(nothing) if there is none.
const Device& device_for(const std::string& name);
// "opencl:0"
std::string device_name(const Device& device);

// Whether it is the URL of a database.
bool is_shared(const std::string& store);
// `given`, or the default place. Throws Failure if there is none, or if it is no directory's path.
std::string store_path(const std::string& given);
// `given`, or the database of the environment.
std::string shared_or(const std::string& given);
// Without the password of a URL.
std::string shown_store(const std::string& store);
// What a store is called in messages.
std::string store_name(const std::string& given);
// The directories that hold entries: the given store, or the default one with its layers behind it.
// Throws Failure(nothing) if the given one does not exist, Failure(failed) if it is not a
// directory.
std::vector<std::string> store_paths(const std::string& given);
// The same for verbs that only read: with the database that is given, or is the default one.
std::vector<std::string> stores_to_read(const std::string& given);

// Entries of those stores, in the order of device, op, and key; hidden ones last. Changes
// nothing on disk. Shows progress.
std::vector<Held> read_entries(const std::vector<std::string>& paths, const Filter& filter,
                               Problems& problems, Detail detail = Detail::all);
// The entry in the place where this one is or would be kept, of the same call and environment.
std::optional<Entry> entry_in_place_of(const DirectoryStore& store, const Entry& entry);

// A file that is not what its place says.
struct BadFile {
  enum class Kind {
    damaged,
    altered,  // its checksum is wrong: perhaps on purpose
    newer,    // of a later version, which knows it
    unreadable,
  };
  std::string path;
  Kind kind;
  std::string why;
};
// The folder of recorded calls that belongs to a store; "" if there is no place for one.
std::string records_of(const std::string& given);
// Of the entries in a store and the records in a folder, those that were set aside (".bad") too.
std::vector<BadFile> bad_files(const std::string& store, const std::string& records);

// The layers for a selector; the first one can be written unless `read_only`.
std::shared_ptr<PersistentCache> open_layers(const std::string& given, bool read_only,
                                             Problems& problems);
// Deadlines for people.
detail::PostgresStore::Options patient_options(Problems& problems);
// Only to be looked at. Throws as store_paths does.
std::shared_ptr<PersistentCache> existing_layers(const std::string& given, Problems& problems);

// The heuristic's config of an entry; nullptr: not known. Entries of earlier versions do not name
// it: there it is the candidate that took the very time that the evidence gives the heuristic, if
// the candidates were read.
const Value* heuristic_of(const Entry& entry);

// How its outcome is shown.
Tone tone_of(const Entry& entry);

// Short facts of an entry for lists.
Value entry_summary(const Held& held);

}  // namespace ejk::cli
