// SPDX-License-Identifier: Apache-2.0
// A store that is a directory with one JSON file per entry; docs/store_format.md specifies it.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/store.h>

#include "base/directory.h"
#include "base/sha256.h"
#include "base/time.h"
#include "base/warn.h"
#include "platform/here.h"
#include "store/checksum.h"

namespace ejk {
namespace {

using base::Absent;
using base::Directory;
using base::FileError;
using base::FileLock;
using std::chrono::milliseconds;

constexpr const char* format_directory = "v1";
constexpr size_t read_limit = size_t{16} << 20;
constexpr int shards = 64;
// A put holds its lock for one read and one flushed write. Whoever needs longer is stopped or on
// a dead file system, and a lost put is better than a stalled call.
constexpr milliseconds put_patience{1'000}, stalled_patience{50}, put_pause{4};
// A holder that tunes gives ten signs in the time after which it counts as silent.
constexpr milliseconds lease_pause{20}, refresh_pause{100};
constexpr int silent_looks = 50;  // one every lease_pause: a second

// What a file turned out to be.
struct Loaded {
  enum class Status {
    absent,
    entry,
    broken,       // not an entry: may be set aside
    altered,      // not what was written: stays until its place is needed
    untouchable,  // not ours to judge: a newer schema, or a file that cannot be read
  };
  Status status;
  std::optional<Entry> entry;
  std::string why;
  base::Strangers strange = {};
};

bool is_newer_schema(const Value& document) {
  const Value* schema = document.find("schema");
  return schema != nullptr && schema->is_int() && schema->as_double() > entry_schema;
}

constexpr const char* wrong_checksum =
    "its checksum is wrong; to have an edited entry read, remove the member \"checksum\" from it";

Loaded load(const Directory& in, const std::string& name) {
  using enum Loaded::Status;
  const auto [text, error, strange] = in.read(name, read_limit);
  if (error.is_absent() || in.refused()) return {absent, {}, ""};
  if (error) return {untouchable, {}, error.text(), strange};
  try {
    const Value document = parse_json(text);
    const auto checksum = detail::checksum_of(text, document);
    const bool wrong = checksum == detail::Checksum::wrong;
    if (is_newer_schema(document)) {
      if (wrong) return {altered, {}, wrong_checksum, strange};  // a flipped bit makes 3 of 1
      return {untouchable,
              {},
              "it was written by a newer version (schema " + stable_json(*document.find("schema")) +
                  ")"};
    }
    Loaded good{entry, entry_from_document(document), "", strange};
    if (wrong) return {altered, {}, wrong_checksum, strange};
    good.entry->trusted = checksum == detail::Checksum::right && !strange;
    return good;
  } catch (const Error& problem) {
    return {broken, {}, problem.what(), strange};
  }
}

// Where an entry is, below the directory of the format.
struct Place {
  std::string device, op, file;
};

bool serves(const Entry& entry, const EntryId& id) {
  return entry.id.device == id.device && entry.id.op == id.op && entry.id.key == id.key &&
         (entry.id.spec == id.spec || entry.id.spec.empty() || id.spec.empty());
}

bool same_id(const EntryId& a, const EntryId& b) {
  return a.device == b.device && a.op == b.op && a.key == b.key && a.spec == b.spec;
}

// Members of both; where both have one, objects are merged and else that of `over` stays.
Value merged(const Value& under, const Value& over) {
  if (over.is_null()) return under;
  if (!under.is_object() || !over.is_object()) return over;
  std::map<std::string_view, const Value*> below;
  for (const auto& [name, value] : under.as_object().members) below[name] = &value;
  Value::Object out;
  for (const auto& [name, value] : over.as_object().members) {
    const auto it = below.find(name);
    out.members.emplace_back(name, it == below.end() ? value : merged(*it->second, value));
    if (it != below.end()) below.erase(it);
  }
  for (const auto& [name, value] : under.as_object().members)
    if (below.contains(name)) out.members.emplace_back(name, value);
  return Value(std::move(out));
}

// What is written must be readable: no NaN-like surprises from a hand-made number, no nesting
// deeper than the reader takes.
std::optional<std::string> readable_text(const Entry& entry, std::string& why) {
  std::string text = to_json(entry_to_document(entry), 1) + "\n";
  if (entry.trusted) text = detail::with_checksum(std::move(text));
  if (text.size() > read_limit) {
    why = "it is larger than 16 MiB";
    return std::nullopt;
  }
  try {
    (void)entry_from_document(parse_json(text));
    return text;
  } catch (const Error& error) {
    why = error.what();
    return std::nullopt;
  }
}

std::string cure(int code) {
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) return "free some space there, or";
  if (code == EACCES || code == EPERM || code == EROFS) return "make it writable, or";
  if (code == ELOOP)
    return "replace the link (only the directory of the store itself may be one), or";
  if (code == ETIMEDOUT) return "end the process that holds the lock, or";
  return "repair this, or";
}

struct HeldLease final : TuningLease {
  HeldLease(Directory in, std::string name, milliseconds patience)
      : lock(std::move(in), std::move(name), {patience, lease_pause, silent_looks},
             FileLock::AfterUse::remove_file) {
    if (lock.held()) lock.give_sign();
  }

  void refresh() override {
    const auto now = std::chrono::steady_clock::now();
    if (now - refreshed < refresh_pause) return;
    refreshed = now;
    lock.give_sign();
  }

  FileLock lock;
  std::chrono::steady_clock::time_point refreshed{};
};

std::string absolute_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    throw Error(ErrorKind::invalid_argument,
                "a store needs the path of a directory, not " + stable_json(Value(path)));
  }
  std::error_code error;  // without a working directory the path stays as it was given
  const auto absolute = std::filesystem::absolute(path, error);
  std::string out = error ? path : absolute.lexically_normal().string();
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

}  // namespace

struct DirectoryStore::State {
  State(std::string path, Options options)
      : root(absolute_path(path)),
        read_only(options.read_only),
        environment(std::move(options.environment)),
        warn(options.on_warning ? std::move(options.on_warning) : stderr_warnings()) {}

  std::string root;
  bool read_only;
  Value environment;
  base::OnceWarnings warn;
  const base::Trust trust = base::trust_from_environment();
  std::atomic<bool> cleaned = false;
  std::atomic<bool> stalled = false;  // the last lock could not be had in time

  // Of the device that an entry is for, if that is here.
  const Value& own_environment(const EntryId& id) const {
    if (!environment.is_null()) return environment;
    const Device* device = detail::device_here(id.device);
    return device == nullptr ? cpu_device().environment : device->environment;
  }

  // ---- places

  static std::string file_of_key(const EntryId& id) { return base::file_name_of(id.key) + ".json"; }
  static Place place_of(const EntryId& id) {
    return {base::file_name_of(id.device), base::file_name_of(id.op),
            id.spec.empty() ? file_of_key(id) : base::sha256_hex(id.spec, 32) + ".json"};
  }
  std::string path_of(const Place& place) const {
    return root + "/" + format_directory + "/" + place.device + "/" + place.op + "/" + place.file;
  }

  Directory open(const std::string& names, Absent absent) {
    Directory directory = Directory::at(root, absent, trust).below(names, absent);
    if (!directory.exposed().empty())
      warn("exposed",
           "everyone may write to " + directory.exposed() +
               ", and so decide what kernels run with; take that right away (chmod o-w)" +
               (directory.refused() ? ". Until then nothing there is used" : ""));
    return directory;
  }
  // One that cannot be read is said once, not for each of its entries.
  bool can_read(const Directory& directory) {
    const FileError& error = directory.error();
    if (error && !error.is_absent() && !directory.refused())
      warn(error.what, "passing over all below: " + error.text() +
                           (error.code == ELOOP ? "; make " + root + " itself the link" : ""));
    return !error;
  }
  Directory folder_of(const Place& place, Absent absent = Absent::fails) {
    return open(format_directory + ("/" + place.device + "/" + place.op), absent);
  }

  // Asks for the places that may hold an answer, best first, until `visit` returns true. A key
  // without its spec is the only case that lists a directory, and only if its own file does not
  // answer: names of entries with a spec begin with their key.
  template <class Visit>
  void for_places(const EntryId& id, Visit visit) {
    Place place = place_of(id);
    const Directory folder = folder_of(place);
    if (!can_read(folder) || visit(folder, place)) return;
    if (!id.spec.empty()) {
      place.file = file_of_key(id);
      visit(folder, place);
    } else if (id.key.size() == 16) {
      for (std::string& name : folder.names()) {
        const bool of_spec = name.size() == 32 + 5 && name.ends_with(".json");
        if (!of_spec || !name.starts_with(id.key)) continue;
        place.file = std::move(name);
        if (visit(folder, place)) return;
      }
    }
  }

  // ---- locking

  // Where the file system has no locks, renaming still keeps every file whole.
  bool go_on_without(const FileLock& lock) {
    if (!lock.error().has_no_locks()) return false;
    warn("no locks", "the file system of " + root + " has no locks (" + lock.error().text() +
                         "): processes that tune the same call may replace each other's result");
    return true;
  }

  // One of a fixed number of locks, so that their files do not grow with the entries. Who has
  // waited in vain hardly waits for the next ones, until one can be had again.
  struct Locked : FileLock {
    Locked(State& state, const std::string& file)
        : FileLock(state.open("locks", Absent::made), shard_of(file),
                   {state.stalled ? stalled_patience : put_patience, put_pause},
                   AfterUse::keep_file),
          usable(held() || state.go_on_without(*this)) {
      state.stalled = error().code == ETIMEDOUT;
    }
    static std::string shard_of(const std::string& file) {
      const int shard = base::sha256(file)[0] % shards;
      return std::to_string(shard / 10) + std::to_string(shard % 10);
    }
    bool usable;
  };

  // ---- reading

  std::optional<Entry> read(const Directory& in, const Place& place) {
    Loaded loaded = load(in, place.file);
    if (loaded.status == Loaded::Status::broken && !read_only && !loaded.strange)
      loaded = set_aside(in, place);
    report(path_of(place), loaded);
    return std::move(loaded.entry);
  }

  void report(const std::string& path, const Loaded& loaded) {
    using enum Loaded::Status;
    if (loaded.strange && (loaded.status == entry || loaded.status == untouchable))
      report_strange(path, loaded.strange, loaded.entry ? "are not trusted" : "are not used");
    else if (loaded.status == untouchable || loaded.status == altered)
      warn(path, "passing over " + path + ": " + loaded.why);
    else if (loaded.status == broken)
      warn(path, "passing over " + path + ", which is not an entry: " + loaded.why);
  }

  void report_strange(const std::string& path, const base::Strangers& who, const char* effect) {
    if (who.everyone)
      warn("for everyone", "everyone may write to " + path + "; such entries " + effect +
                               ". Take that right away: chmod -R o-w " + root);
    else
      warn("of another user", path + " belongs to user " + std::to_string(*who.owner) +
                                  "; entries of others " + effect +
                                  ". Have root own what is published, or import it (ejk import)");
  }

  // Looks again under the lock, because a good file may have come in its place meanwhile.
  Loaded set_aside(const Directory& in, const Place& place) {
    const Locked lock(*this, place.file);
    Loaded again = load(in, place.file);
    if (lock.usable && again.status == Loaded::Status::broken) rename_bad(in, place, again.why);
    return again;
  }

  void rename_bad(const Directory& in, const Place& place, const std::string& why) {
    if (const FileError error = in.rename(place.file, place.file + ".bad"))
      return cannot_write(error);
    const std::string path = path_of(place);
    warn(path, path + " is not an entry and was set aside as " + path + ".bad: " + why);
  }

  // ---- writing

  void cannot_write(const FileError& error) {
    if (error.refused) return;  // said where it was opened
    warn("unwritable", "cannot keep tuning results in " + root + " (" + error.text() +
                           "). To keep them, " + cure(error.code) +
                           " set EJKERNEL_PERSISTENT_CACHE_DIR to another directory");
  }
  bool written(const FileError& error) {
    if (error) cannot_write(error);
    return !error;
  }

  bool write(const Directory& in, const Directory& temporary, const Place& place,
             const Entry& entry) {
    std::string why;
    const auto text = readable_text(entry, why);
    if (!text) {
      warn("unreadable " + path_of(place),
           "[" + entry.id.op + "] not keeping an entry that could not be read back: " + why);
      return false;
    }
    return written(in.replace(place.file, *text, temporary));
  }

  // True if the file's place is free for `entry`; false if what is there must stay.
  bool make_room(const Directory& in, const Place& place, const Entry& entry,
                 const Loaded& present) {
    if (present.status == Loaded::Status::untouchable) {
      const std::string path = path_of(place);
      warn("kept " + path, "not writing over " + path + ": " + present.why);
      return false;
    }
    if (present.status == Loaded::Status::broken || present.status == Loaded::Status::altered)
      rename_bad(in, place, present.why);
    if (present.entry && !same_id(present.entry->id, entry.id))
      rename_bad(in, place, "it is the entry of another call");
    return true;
  }

  bool put(const Entry& entry, bool replace) {
    const Place place = place_of(entry.id);
    const Directory folder = folder_of(place, Absent::made);
    if (folder.error()) return written(folder.error());
    const Directory temporary = open("tmp", Absent::made);
    if (!cleaned.exchange(true)) temporary.remove_leftovers();
    const Locked lock(*this, place.file);
    if (!lock.usable) return written(lock.error());
    const Loaded present = load(folder, place.file);
    if (!make_room(folder, place, entry, present)) return false;
    if (!present.entry || !same_id(present.entry->id, entry.id))
      return write(folder, temporary, place, entry);
    if (!replace && !better_evidence(entry, *present.entry, own_environment(entry.id))) return true;
    Entry with_unknown = entry;
    with_unknown.extra = merged(present.entry->extra, entry.extra);
    return write(folder, temporary, place, with_unknown);
  }

  bool erase_file(const Directory& in, const Place& place, const EntryId& id) {
    if (load(in, place.file).status == Loaded::Status::absent) return false;
    const Locked lock(*this, place.file);
    if (!lock.usable) return written(lock.error());
    const Loaded loaded = load(in, place.file);
    if (!loaded.entry || !serves(*loaded.entry, id)) return false;
    return written(in.remove(place.file));
  }

  void report_foreign(const Place& place) {
    const std::string path = path_of(place);
    warn(path, "passing over " + path + ": it is the entry of another call");
  }

  // False once `visit` has returned false.
  bool visit_folder(const std::string& device, const std::string& op,
                    const std::function<bool(const Entry&)>& visit) {
    const Directory folder = folder_of({device, op, ""});
    if (!can_read(folder)) return true;
    for (const std::string& file : folder.names()) {
      const Place place{device, op, file};
      const auto entry = file.ends_with(".json") ? read(folder, place) : std::nullopt;
      if (!entry) continue;
      if (path_of(place_of(entry->id)) != path_of(place)) report_foreign(place);
      else if (!visit(*entry)) return false;
    }
    return true;
  }
};

DirectoryStore::DirectoryStore(std::string path, Options options)
    : state_(std::make_unique<State>(std::move(path), std::move(options))) {}

DirectoryStore::~DirectoryStore() = default;

std::optional<Entry> DirectoryStore::get(const EntryId& id) {
  std::optional<Entry> found;
  state_->for_places(id, [&](const Directory& in, const Place& place) {
    found = state_->read(in, place);
    if (!found || serves(*found, id)) return found.has_value();
    state_->report_foreign(place);
    found.reset();
    return false;
  });
  return found;
}

bool DirectoryStore::put(const Entry& entry, bool replace) {
  if (!state_->read_only) return state_->put(entry, replace);
  state_->warn("read-only", "not writing to " + state_->root + ": it was opened read-only");
  return false;
}

bool DirectoryStore::erase(const EntryId& id) {
  bool erased = false;
  if (state_->read_only) return erased;
  state_->for_places(id, [&](const Directory& in, const Place& place) {
    erased |= state_->erase_file(in, place, id);
    return false;
  });
  return erased;
}

void DirectoryStore::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit) {
  const Directory top = state_->open(format_directory, Absent::fails);
  if (!state_->can_read(top)) return;
  for (const std::string& device : top.names()) {
    const Directory below = top.below(device);
    if (!state_->can_read(below)) continue;
    const auto ops = op.empty() ? below.names() : std::vector{base::file_name_of(op)};
    for (const std::string& name : ops)
      if (!state_->visit_folder(device, name, visit)) return;
  }
}

std::unique_ptr<TuningLease> DirectoryStore::lease(const EntryId& id, double patience_seconds) {
  const auto patience =
      std::chrono::duration_cast<milliseconds>(base::duration_of(patience_seconds));
  if (state_->read_only) return nullptr;
  const Value whole = Value(Value::Array{id.device, id.op, id.key, id.spec});
  const std::string name = base::sha256_hex(stable_json(whole), 32) + ".lock";
  auto held = std::make_unique<HeldLease>(state_->open("leases", Absent::made), name, patience);
  if (held->lock.held()) return held;
  const FileError& error = held->lock.error();
  if (held->lock.holder_is_silent())
    state_->warn("silent",
                 "[" + id.op + "] not waiting for the process that tunes this call in " +
                     state_->root +
                     ": it gave no sign of life for a second. The call is tuned here too");
  else if (error.code != ETIMEDOUT && !state_->go_on_without(held->lock))
    state_->cannot_write(error);
  return nullptr;
}

std::string DirectoryStore::where() const { return state_->root; }

bool DirectoryStore::writable() const { return !state_->read_only; }

std::string DirectoryStore::file_of(const EntryId& id) const {
  return state_->path_of(State::place_of(id));
}

}  // namespace ejk
