// SPDX-License-Identifier: Apache-2.0
// A store that is a directory with one file per entry; docs/reference/store_format.md specifies it.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/names.h>
#include <ejk/store.h>

#include "base/directory.h"
#include "base/hidden.h"
#include "base/sha256.h"
#include "base/time.h"
#include "base/warn.h"
#include "store/entry_file.h"
#include "store/keep.h"

namespace ejk {
namespace {

using base::Absent;
using base::Directory;
using base::FileError;
using base::FileLock;
using detail::same_place;
using detail::serves;
using std::chrono::milliseconds;

constexpr const char* format_directory = "v2";
constexpr const char* old_format_directory = "v1";  // one entry per call: read, never written
constexpr std::string_view suffix = ".json";
constexpr int shards = 64;
// A put holds its lock for one read and one flushed write. A process that needs longer is stopped
// or on a dead file system, and a lost put is better than a stalled call.
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

Loaded load(const Directory& in, const std::string& name, Detail detail) {
  using enum Loaded::Status;
  using Read = detail::ReadEntry::Status;
  const auto [text, error, strange] =
      in.read(name, detail::max_entry_bytes,
              detail == Detail::choice ? detail::end_of_document : std::string_view());
  if (error.is_absent() || in.refused()) return {absent, {}, ""};
  if (error) return {untouchable, {}, error.text(), strange};
  auto [status, entry_read, why, no_candidates] = detail::read_entry(text, detail);
  if (status == Read::newer) return {untouchable, {}, std::move(why)};
  if (status == Read::altered) return {altered, {}, std::move(why), strange};
  if (status == Read::broken) return {broken, {}, std::move(why), strange};
  if (strange) entry_read->trusted = false;
  return {entry, std::move(entry_read), std::move(no_candidates), strange};
}

// Where the entries of a call are, below the directory of the format.
struct Place {
  std::string device, op, call;

  std::string folder() const { return "/" + device + "/" + op; }
};

std::string call_of_key(const EntryId& id) { return base::file_name_of(id.key); }
Place place_of(const EntryId& id) {
  return {base::file_name_of(id.device), base::file_name_of(id.op),
          id.spec.empty() ? call_of_key(id) : base::sha256_hex(id.spec, 32)};
}

std::string with_suffix(std::string name) { return name.append(suffix); }
std::string file_of_entry(const Entry& entry) { return with_suffix(environment_id(entry)); }
std::string file_of_environment(const Value& environment) {
  Entry entry;
  entry.environment = environment;
  return file_of_entry(entry);
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

std::string absolute_path(std::string path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    throw Error(ErrorKind::invalid_argument,
                "a store needs the path of a directory, not " + stable_json(Value(path)));
  }
  std::error_code error;  // without a working directory the path stays as it was given
  const auto absolute = std::filesystem::absolute(path, error);
  if (!error) path = absolute.lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

struct EJK_HIDDEN DirectoryStore::State {
  State(std::string path, Options options)
      : root(absolute_path(std::move(path))),
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
  std::mutex mutex;
  Value last_asked;
  std::string last_file;

  const Value& own_environment(const EntryId& id) const {
    return environment.is_null() ? detail::environment_here(id) : environment;
  }

  // Of entries of an environment. Most questions are about the same one.
  std::string file_of(const Value& asked) {
    const std::lock_guard lock(mutex);
    if (last_file.empty() || last_asked != asked)
      last_asked = asked, last_file = file_of_environment(asked);
    return last_file;
  }

  // ---- places

  Directory noted(Directory directory) {
    if (!directory.exposed().empty())
      warn("exposed",
           "everyone may write to " + directory.exposed() +
               ", and so decide what kernels run with; take that right away (chmod o-w)" +
               (directory.refused() ? ". Until then nothing there is used" : ""));
    return directory;
  }
  Directory open(const std::string& names, Absent absent) {
    return noted(Directory::at(root, absent, trust).below(names, absent));
  }
  // One that cannot be read is said once, not for each of its entries.
  bool can_read(const Directory& directory) {
    const FileError& error = directory.error();
    if (error && !error.is_absent() && !directory.refused())
      warn(error.what, "passing over all below: " + error.text() +
                           (error.code == ELOOP ? "; make " + root + " itself the link" : ""));
    return !error;
  }

  // Of an op and a device: a folder per call, and the files of the old format.
  struct Folders {
    Directory calls, old;
  };
  Folders folders_of(const Place& place) {
    Directory top = Directory::at(root, Absent::fails, trust);
    Folders out{noted(top.below(format_directory + place.folder())),
                noted(top.below(old_format_directory + place.folder()))};
    can_read(out.calls), can_read(out.old);
    return out;
  }

  // Asks for the calls that may hold an answer, best first, until `visit` returns true. A key
  // without its spec is the only case that lists a directory of calls, and only if its own does not
  // answer: names of calls with a spec begin with their key.
  template <class Visit>
  void for_calls(const EntryId& id, Visit visit) {
    const Place place = place_of(id);
    const Folders folders = folders_of(place);
    if (visit(folders, place.call)) return;
    if (!id.spec.empty()) {
      visit(folders, call_of_key(id));
    } else if (id.key.size() == 16) {
      std::set<std::string> calls;
      const auto add = [&](std::string_view name) {
        if (name.size() == 32 && name.starts_with(id.key)) calls.emplace(name);
      };
      for (const std::string& name : folders.calls.names()) add(name);
      for (std::string_view name : folders.old.names())
        if (name.ends_with(suffix)) add(name.substr(0, name.size() - suffix.size()));
      for (const std::string& call : calls)
        if (visit(folders, call)) return;
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

  // One of a fixed number of locks, so that their files do not grow with the entries. After
  // one could not be had in time, the next ones are hardly waited for, until one can be had again.
  struct Locked : FileLock {
    // Of a call: who still writes the old format takes the same one.
    Locked(State& state, const std::string& call)
        : FileLock(state.open("locks", Absent::made), shard_of(with_suffix(call)),
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

  // A file among those of a call, or of the old format.
  std::optional<Entry> read(const Directory& in, const std::string& name, const std::string& call,
                            Detail detail) {
    Loaded loaded = load(in, name, detail);
    if (loaded.status == Loaded::Status::broken && !read_only && !loaded.strange)
      loaded = set_aside(in, name, call, detail);
    report(in.path_of(name), loaded);
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
    if (loaded.status == entry && !loaded.why.empty())
      warn(path, "passing over the candidates in " + path + ": " + loaded.why);
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

  void report_foreign(const std::string& path) {
    warn(path, "passing over " + path + ": it is the entry of another call");
  }

  // Looks again under the lock, because a good file may have come in its place meanwhile.
  Loaded set_aside(const Directory& in, const std::string& name, const std::string& call,
                   Detail detail) {
    const Locked lock(*this, call);
    Loaded again = load(in, name, detail);
    if (lock.usable && again.status == Loaded::Status::broken) rename_bad(in, name, again.why);
    return again;
  }

  void rename_bad(const Directory& in, const std::string& name, const std::string& why) {
    if (const FileError error = in.rename(name, name + ".bad")) return cannot_write(error);
    const std::string path = in.path_of(name);
    warn(path, path + " is not an entry and was set aside as " + path + ".bad: " + why);
  }

  // What is asked for.
  struct Question {
    const EntryId& id;
    Detail detail;
    const Value& environment;
    std::string own_file;  // of that environment
  };

  // Of the entries of a call the one that answers before the others. What was measured in the
  // environment of the question needs no look at the others.
  std::optional<Entry> best_of(const Folders& folders, const std::string& call,
                               const Question& question) {
    std::optional<Entry> best;
    const auto consider = [&](std::optional<Entry> entry) {
      if (entry && (!best || answers_before(*entry, *best, question.environment)))
        best = std::move(entry);
    };
    const Directory in = noted(folders.calls.below(call));
    if (!folders.calls.error() && can_read(in)) {
      best = read_own(in, call, question);
      if (best && is_measured(*best)) return best;
      for (const std::string& name : in.names())
        if (name.ends_with(suffix) && name != question.own_file)
          consider(read_right(in, name, call, question));
    }
    if (folders.old.error()) return best;
    auto old = read(folders.old, with_suffix(call), call, question.detail);
    if (old && !serves(*old, question.id)) {
      report_foreign(folders.old.path_of(with_suffix(call)));
      old.reset();
    }
    // One that stands in its new place was compared with the old one when it was written.
    if (old && !in.has(file_of_entry(*old))) consider(std::move(old));
    return best;
  }

  std::optional<Entry> read_own(const Directory& in, const std::string& call,
                                const Question& question) {
    auto entry = read(in, question.own_file, call, question.detail);
    const bool right =
        !entry || (serves(*entry, question.id) && entry->environment == question.environment &&
                   !is(entry->provenance, Provenance::transferred));
    if (right) return entry;
    report_foreign(in.path_of(question.own_file));
    return std::nullopt;
  }

  std::optional<Entry> read_right(const Directory& in, const std::string& name,
                                  const std::string& call, const Question& question) {
    auto entry = read(in, name, call, question.detail);
    if (!entry || (serves(*entry, question.id) && file_of_entry(*entry) == name)) return entry;
    report_foreign(in.path_of(name));
    return std::nullopt;
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

  bool write(const Directory& in, const Directory& temporary, const std::string& name,
             const Entry& entry) {
    const auto text = detail::entry_text(entry);
    if (!text) {
      warn("unreadable " + in.path_of(name),
           "[" + entry.id.op + "] not keeping an entry that could not be read back: " + text.why());
      return false;
    }
    return written(in.replace(name, *text, temporary));
  }

  // True if the file's place is free for `entry`; false if what is there must stay.
  bool make_room(const Directory& in, const std::string& name, const Entry& entry,
                 Loaded& present) {
    if (present.status == Loaded::Status::untouchable) {
      const std::string path = in.path_of(name);
      warn("kept " + path, "not writing over " + path + ": " + present.why);
      return false;
    }
    if (present.status == Loaded::Status::broken || present.status == Loaded::Status::altered)
      rename_bad(in, name, present.why);
    if (present.entry && !same_place(*present.entry, entry)) {
      rename_bad(in, name, "it is the entry of another call");
      present.entry.reset();
    }
    return true;
  }

  // What a writer needs beside the lock of its call.
  struct Desk {
    Directory folder, temporary;
  };
  Desk desk_for(const Place& place) {
    Desk desk{open(format_directory + place.folder(), Absent::made), open("tmp", Absent::made)};
    if (!desk.folder.error() && !cleaned.exchange(true)) desk.temporary.remove_leftovers();
    return desk;
  }

  bool put(const Entry& entry, IfPresent if_present) {
    const Place place = place_of(entry.id);
    const Desk desk = desk_for(place);
    if (desk.folder.error()) return written(desk.folder.error());
    const Locked lock(*this, place.call);
    if (!lock.usable) return written(lock.error());
    const Directory old = open(old_format_directory + place.folder(), Absent::fails);
    std::optional<Entry> before;
    if (!old.error()) before = load(old, with_suffix(place.call), Detail::all).entry;
    if (before && !same_place(*before, entry)) before.reset();
    if (!put_locked(desk, place, entry, if_present, before)) return false;
    return if_present == IfPresent::keep_better || clear_way(desk, old, place, entry);
  }

  // Removes what would answer before the entry in its own environment, and what an upgrade would
  // bring back.
  bool clear_way(const Desk& desk, const Directory& old, const Place& place, const Entry& entry) {
    bool cleared = true;
    const auto clear = [&](const Directory& in, const std::string& name, bool same_place_too) {
      const auto other = load(in, name, Detail::choice).entry;
      if (!other || !detail::same_call(other->id, entry.id)) return;
      if (detail::stands_in_the_way(*other, entry) || (same_place_too && same_place(*other, entry)))
        cleared &= written(in.remove(name));
    };
    const Directory in = desk.folder.below(place.call);
    const std::string own = file_of_entry(entry);
    for (const std::string& name : in.names())
      if (name.ends_with(suffix) && name != own) clear(in, name, false);
    if (!old.error()) clear(old, with_suffix(place.call), true);
    return cleared;
  }

  // `old`: the entry of the old format, which answers as long as nothing is in its place.
  bool put_locked(const Desk& desk, const Place& place, const Entry& entry, IfPresent if_present,
                  const std::optional<Entry>& old) {
    const Directory in = noted(desk.folder.below(place.call, Absent::made));
    if (in.error()) return written(in.error());
    const std::string name = file_of_entry(entry);
    Loaded present = load(in, name, Detail::all);
    if (!make_room(in, name, entry, present)) return false;
    const std::optional<Entry>& there = present.entry ? present.entry : old;
    if (!there) return write(in, desk.temporary, name, entry);
    const auto kept = detail::kept(entry, *there, if_present);
    return !kept || write(in, desk.temporary, name, *kept);
  }

  bool erase_call(const Folders& folders, const std::string& call, const EntryId& id) {
    const Directory in = folders.calls.below(call);
    const std::string old_file = with_suffix(call);
    if (in.error() && !folders.old.has(old_file)) return false;
    const Locked lock(*this, call);
    if (!lock.usable) return written(lock.error());
    bool erased = false;
    const auto erase = [&](const Directory& from, const std::string& name) {
      const Loaded loaded = load(from, name, Detail::choice);
      if (loaded.entry && serves(*loaded.entry, id)) erased |= written(from.remove(name));
    };
    for (const std::string& name : in.names())
      if (name.ends_with(suffix)) erase(in, name);
    erase(folders.old, old_file);
    folders.calls.remove_if_empty(call);
    return erased;
  }

  // ---- all entries

  // Calls fn(names of the device and the op, folder of the op); false once it returned false.
  template <class Fn>
  bool for_folders(const char* format, std::string_view op, Fn fn) {
    const Directory top = open(format, Absent::fails);
    if (!can_read(top)) return true;
    for (const std::string& device : top.names()) {
      const Directory below = noted(top.below(device));
      if (!can_read(below)) continue;
      const auto ops = op.empty() ? below.names() : std::vector{base::file_name_of(op)};
      for (const std::string& name : ops) {
        const Directory folder = noted(below.below(name));
        if (can_read(folder) && !fn(Place{device, name, ""}, folder)) return false;
      }
    }
    return true;
  }

  bool is_at(const Entry& entry, const Place& place) {
    const Place own = place_of(entry.id);
    return own.device == place.device && own.op == place.op && own.call == place.call;
  }

  void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                Detail detail) {
    const bool more = for_folders(format_directory, op, [&](Place place, const Directory& folder) {
      for (const std::string& call : folder.names()) {
        place.call = call;
        const Directory in = noted(folder.below(call));
        if (!can_read(in)) continue;
        for (const std::string& name : in.names()) {
          const auto entry = name.ends_with(suffix) ? read(in, name, call, detail) : std::nullopt;
          if (!entry) continue;
          if (!is_at(*entry, place) || file_of_entry(*entry) != name)
            report_foreign(in.path_of(name));
          else if (!visit(*entry)) return false;
        }
      }
      return true;
    });
    if (!more) return;
    for_folders(old_format_directory, op, [&](Place place, const Directory& folder) {
      const Directory calls = open(format_directory + place.folder(), Absent::fails);
      for (const std::string& name : folder.names()) {
        if (!name.ends_with(suffix)) continue;
        place.call = name.substr(0, name.size() - suffix.size());
        const auto entry = read(folder, name, place.call, detail);
        if (!entry) continue;
        if (!is_at(*entry, place)) report_foreign(folder.path_of(name));
        else if (!calls.below(place.call).has(file_of_entry(*entry)) && !visit(*entry))
          return false;
      }
      return true;
    });
  }

  // ---- upgrading

  Upgrade upgrade(const std::function<bool(size_t done, size_t of)>& go_on) {
    std::vector<Place> old;
    for_folders(old_format_directory, "", [&](const Place& place, const Directory& folder) {
      for (const std::string& name : folder.names())
        if (name.ends_with(suffix))
          old.push_back({place.device, place.op, name.substr(0, name.size() - suffix.size())});
      return true;
    });
    Upgrade out;
    for (size_t i = 0; i < old.size() && (!go_on || go_on(i, old.size())); ++i)
      ++(upgrade_file(old[i]) ? out.moved : out.left);
    if (out.moved + out.left < old.size()) return out;
    if (go_on) go_on(old.size(), old.size());
    const Directory top = Directory::at(root, Absent::fails, trust);
    const Directory devices = top.below(old_format_directory);
    for (const std::string& device : devices.names()) {
      const Directory ops = devices.below(device);
      for (const std::string& op : ops.names()) ops.remove_if_empty(op);
      devices.remove_if_empty(device);
    }
    top.remove_if_empty(old_format_directory);
    return out;
  }

  // The old file goes when the entry stands in its new place, and not before.
  bool upgrade_file(const Place& place) {
    const Desk desk = desk_for(place);
    if (desk.folder.error()) return written(desk.folder.error());
    const Locked lock(*this, place.call);
    if (!lock.usable) return written(lock.error());
    const Directory from = open(old_format_directory + place.folder(), Absent::fails);
    const std::string name = with_suffix(place.call);
    const Loaded loaded = load(from, name, Detail::all);
    if (loaded.status == Loaded::Status::absent) return true;  // another process moved it
    report(from.path_of(name), loaded);
    if (!loaded.entry) return false;
    if (!is_at(*loaded.entry, place)) return report_foreign(from.path_of(name)), false;
    return put_locked(desk, place, *loaded.entry, IfPresent::keep_better, std::nullopt) &&
           written(from.remove(name));
  }

  std::string path_of(const Place& place, const std::string& file) const {
    return root + "/" + format_directory + place.folder() + "/" + place.call + "/" + file;
  }
};

DirectoryStore::DirectoryStore(std::string path, Options options)
    : state_(std::make_unique<State>(std::move(path), std::move(options))) {}

DirectoryStore::~DirectoryStore() = default;

std::optional<Entry> DirectoryStore::get(const EntryId& id, Detail detail,
                                         const Value* environment) {
  const Value& where = environment != nullptr ? *environment : state_->own_environment(id);
  const State::Question question{id, detail, where, state_->file_of(where)};
  std::optional<Entry> found;
  state_->for_calls(id, [&](const State::Folders& folders, const std::string& call) {
    found = state_->best_of(folders, call, question);
    return found.has_value();
  });
  return found;
}

bool DirectoryStore::put(const Entry& entry, IfPresent if_present) {
  if (!state_->read_only) return state_->put(entry, if_present);
  state_->warn("read-only", "not writing to " + state_->root + ": it was opened read-only");
  return false;
}

bool DirectoryStore::erase(const EntryId& id) {
  bool erased = false;
  if (state_->read_only) return erased;
  state_->for_calls(id, [&](const State::Folders& folders, const std::string& call) {
    erased |= state_->erase_call(folders, call, id);
    return false;
  });
  return erased;
}

void DirectoryStore::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                              Detail detail) {
  state_->for_each(op, visit, detail);
}

DirectoryStore::Upgrade DirectoryStore::upgrade(
    const std::function<bool(size_t done, size_t of)>& go_on) {
  if (!state_->read_only) return state_->upgrade(go_on);
  state_->warn("read-only", "not writing to " + state_->root + ": it was opened read-only");
  return {};
}

std::unique_ptr<TuningLease> DirectoryStore::lease(const EntryId& id, double patience_seconds) {
  const auto patience =
      std::chrono::duration_cast<milliseconds>(base::duration_of(patience_seconds));
  if (state_->read_only) return nullptr;
  const std::string name = detail::call_id(id) + ".lock";
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

std::string DirectoryStore::local_directory() const { return state_->root; }

std::string DirectoryStore::file_of(const Entry& entry) const {
  const Place place = place_of(entry.id);
  const std::string path = state_->path_of(place, file_of_entry(entry));
  const std::string old =
      state_->root + "/" + old_format_directory + place.folder() + "/" + with_suffix(place.call);
  std::error_code ignored;
  const bool is_old =
      !std::filesystem::exists(path, ignored) && std::filesystem::exists(old, ignored);
  return is_old ? old : path;
}

std::string DirectoryStore::file_of(const EntryId& id) const {
  return state_->path_of(place_of(id), file_of_environment(state_->own_environment(id)));
}

}  // namespace ejk
