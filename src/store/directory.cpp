// SPDX-License-Identifier: Apache-2.0
// A store that is a directory with one JSON file per entry; docs/store_format.md specifies it.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
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

#include "base/file.h"
#include "base/sha256.h"
#include "base/warn.h"
#include "store/checksum.h"

namespace ejk {
namespace {

using base::FileError;
using base::FileLock;
using std::chrono::milliseconds;

constexpr const char* format_directory = "v1";
constexpr size_t read_limit = size_t{16} << 20;
constexpr int shards = 64;
// A put holds its lock for one read and one flushed write. Whoever needs longer is stopped or on
// a dead file system, and a lost put is better than a stalled call.
constexpr milliseconds put_patience{10'000}, put_pause{4}, lease_pause{20};

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
};

bool is_newer_schema(const Value& document) {
  const Value* schema = document.find("schema");
  return schema != nullptr && schema->is_int() && schema->as_double() > entry_schema;
}

Loaded load(const std::string& path) {
  using enum Loaded::Status;
  const auto [text, error, owner] = base::read_file(path, read_limit);
  if (error.code == ENOENT || error.code == ENOTDIR) return {absent, {}, ""};
  if (error) return {untouchable, {}, error.text()};
  try {
    const Value document = parse_json(text);
    if (is_newer_schema(document)) {
      return {untouchable,
              {},
              "it was written by a newer version (schema " + stable_json(*document.find("schema")) +
                  ")"};
    }
    Loaded good{entry, entry_from_document(document), ""};
    const auto checksum = detail::checksum_of(text, document);
    if (checksum == detail::Checksum::wrong)
      return {altered,
              {},
              "its checksum is wrong; to have an edited entry read, remove the member "
              "\"checksum\" from it"};
    good.entry->trusted = checksum == detail::Checksum::right && base::owner_is_trusted(owner);
    return good;
  } catch (const Error& problem) {
    return {broken, {}, problem.what()};
  }
}

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
  for (const auto& [name, value] : under.as_object().members) {
    if (below.contains(name)) out.members.emplace_back(name, value);
  }
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
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some space there, or";
    case EACCES:
    case EPERM:
    case EROFS:
      return "make it writable, or";
    case ETIMEDOUT:
      return "end the process that holds the lock, or";
    default:
      return "repair this, or";
  }
}

bool cannot_lock_here(int code) { return code == ENOLCK || code == EOPNOTSUPP || code == ENOSYS; }

struct HeldLease final : TuningLease {
  HeldLease(std::string path, milliseconds patience)
      : lock(std::move(path), patience, lease_pause, FileLock::AfterUse::remove_file) {}
  FileLock lock;
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
  std::atomic<bool> cleaned = false;

  std::string directory_of(const EntryId& id) const {
    return root + "/" + format_directory + "/" + base::file_name_of(id.device) + "/" +
           base::file_name_of(id.op);
  }
  std::string file_of_key(const EntryId& id) const {
    return directory_of(id) + "/" + base::file_name_of(id.key) + ".json";
  }
  std::string file_of(const EntryId& id) const {
    if (id.spec.empty()) return file_of_key(id);
    return directory_of(id) + "/" + base::sha256_hex(id.spec, 32) + ".json";
  }
  std::string temporary_directory() const { return root + "/tmp"; }

  const Value& own_environment() const {
    return environment.is_null() ? cpu_device().environment : environment;
  }

  // Asks `visit` for the files that may hold an answer, best first, until it returns true. A key
  // without its spec is the only case that lists a directory, and only if its own file does not
  // answer: names of entries with a spec begin with their key.
  template <class Visit>
  void for_files(const EntryId& id, Visit visit) const {
    if (!id.spec.empty() && visit(file_of(id))) return;
    if (visit(file_of_key(id)) || !id.spec.empty() || id.key.size() != 16) return;
    const std::string directory = directory_of(id);
    for (const std::string& name : base::list_directory(directory)) {
      const bool of_spec = name.size() == 32 + 5 && name.ends_with(".json");
      if (of_spec && name.starts_with(id.key) && visit(directory + "/" + name)) return;
    }
  }

  // ---- locking

  // One of a fixed number of locks, so that their files do not grow with the entries.
  std::string lock_file_of(const std::string& path) const {
    const std::string name = path.substr(path.rfind('/') + 1);
    const int shard = base::sha256(name)[0] % shards;
    return root + "/locks/" + std::to_string(shard / 10) + std::to_string(shard % 10);
  }

  // Where the file system has no locks, renaming still keeps every file whole.
  bool go_on_without(const FileLock& lock) {
    if (!cannot_lock_here(lock.error().code)) return false;
    warn("no locks", "the file system of " + root + " has no locks (" + lock.error().text() +
                         "): processes that tune the same call may replace each other's result");
    return true;
  }

  struct Locked : FileLock {
    Locked(State& state, const std::string& path)
        : FileLock(state.lock_file_of(path), put_patience, put_pause, AfterUse::keep_file),
          usable(held() || state.go_on_without(*this)) {}
    bool usable;
  };

  // ---- reading

  std::optional<Entry> read(const std::string& path) {
    Loaded loaded = load(path);
    if (loaded.status == Loaded::Status::broken && !read_only) loaded = set_aside(path);
    report(path, loaded);
    return std::move(loaded.entry);
  }

  void report(const std::string& path, const Loaded& loaded) {
    if (loaded.status == Loaded::Status::untouchable || loaded.status == Loaded::Status::altered) {
      warn(path, "passing over " + path + ": " + loaded.why);
    } else if (loaded.status == Loaded::Status::broken) {
      warn(path, "passing over " + path + ", which is not an entry: " + loaded.why);
    }
  }

  // Looks again under the lock, because a good file may have come in its place meanwhile.
  Loaded set_aside(const std::string& path) {
    if (base::make_directories(root + "/locks")) return load(path);
    const Locked lock(*this, path);
    Loaded again = load(path);
    if (lock.usable && again.status == Loaded::Status::broken) rename_bad(path, again.why);
    return again;
  }

  void rename_bad(const std::string& path, const std::string& why) {
    const std::string aside = path + ".bad";
    if (const FileError error = base::rename_file(path, aside)) return cannot_write(error);
    warn(path, path + " is not an entry and was set aside as " + aside + ": " + why);
  }

  // ---- writing

  void cannot_write(const FileError& error) {
    warn("unwritable", "cannot keep tuning results in " + root + " (" + error.text() +
                           "). To keep them, " + cure(error.code) +
                           " set EJKERNEL_PERSISTENT_CACHE_DIR to another directory");
  }

  FileError prepare(const std::string& path) {
    for (const std::string& directory :
         {base::parent_directory(path), root + "/locks", temporary_directory()}) {
      if (auto error = base::make_directories(directory)) return error;
    }
    if (!cleaned.exchange(true)) base::remove_leftovers(temporary_directory());
    return {};
  }

  bool write(const std::string& path, const Entry& entry) {
    std::string why;
    const auto text = readable_text(entry, why);
    if (!text) {
      warn("unreadable " + path,
           "[" + entry.id.op + "] not keeping an entry that could not be read back: " + why);
      return false;
    }
    const FileError error = base::replace_file(path, *text, temporary_directory());
    if (error) cannot_write(error);
    return !error;
  }

  // True if the file's place is free for `entry`; false if what is there must stay.
  bool make_room(const std::string& path, const Entry& entry, const Loaded& present) {
    if (present.status == Loaded::Status::untouchable) {
      warn("kept " + path, "not writing over " + path + ": " + present.why);
      return false;
    }
    if (present.status == Loaded::Status::broken || present.status == Loaded::Status::altered)
      rename_bad(path, present.why);
    if (present.entry && !same_id(present.entry->id, entry.id)) {
      rename_bad(path, "it is the entry of another call");
    }
    return true;
  }

  bool put_locked(const std::string& path, const Entry& entry, bool replace) {
    const Loaded present = load(path);
    if (!make_room(path, entry, present)) return false;
    if (!present.entry || !same_id(present.entry->id, entry.id)) return write(path, entry);
    if (!replace && !better_evidence(entry, *present.entry, own_environment())) return true;
    Entry with_unknown = entry;
    with_unknown.extra = merged(present.entry->extra, entry.extra);
    return write(path, with_unknown);
  }

  bool erase_file(const std::string& path, const EntryId& id) {
    if (load(path).status == Loaded::Status::absent) return false;
    if (const FileError error = prepare(path)) {
      cannot_write(error);
      return false;
    }
    const Locked lock(*this, path);
    if (!lock.usable) return false;
    const Loaded loaded = load(path);
    if (!loaded.entry || !serves(*loaded.entry, id)) return false;
    const FileError error = base::remove_file(path);
    if (error) cannot_write(error);
    return !error;
  }
};

DirectoryStore::DirectoryStore(std::string path, Options options)
    : state_(std::make_unique<State>(std::move(path), std::move(options))) {}

DirectoryStore::~DirectoryStore() = default;

std::optional<Entry> DirectoryStore::get(const EntryId& id) {
  std::optional<Entry> found;
  state_->for_files(id, [&](const std::string& path) {
    found = state_->read(path);
    if (!found || serves(*found, id)) return found.has_value();
    state_->warn(path, "passing over " + path + ": it is the entry of another call");
    found.reset();
    return false;
  });
  return found;
}

bool DirectoryStore::put(const Entry& entry, bool replace) {
  if (state_->read_only) {
    state_->warn("read-only", "not writing to " + state_->root + ": it was opened read-only");
    return false;
  }
  const std::string path = file_of(entry.id);
  if (const FileError error = state_->prepare(path)) {
    state_->cannot_write(error);
    return false;
  }
  const State::Locked lock(*state_, path);
  if (!lock.usable) {
    state_->cannot_write(lock.error());
    return false;
  }
  return state_->put_locked(path, entry, replace);
}

bool DirectoryStore::erase(const EntryId& id) {
  if (state_->read_only) return false;
  bool erased = false;
  state_->for_files(id, [&](const std::string& path) {
    erased |= state_->erase_file(path, id);
    return false;
  });
  return erased;
}

void DirectoryStore::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit) {
  const std::string top = state_->root + "/" + format_directory;
  for (const std::string& device : base::list_directory(top)) {
    const std::string below = top + "/" + device;
    const auto ops = op.empty() ? base::list_directory(below) : std::vector{base::file_name_of(op)};
    for (const std::string& name : ops) {
      const std::string directory = below + "/" + name;
      for (const std::string& file : base::list_directory(directory)) {
        if (!file.ends_with(".json")) continue;
        const std::string path = directory + "/" + file;
        const auto entry = state_->read(path);
        if (!entry) continue;
        if (file_of(entry->id) != path)
          state_->warn(path, "passing over " + path + ": it is the entry of another call");
        else if (!visit(*entry)) return;
      }
    }
  }
}

std::unique_ptr<TuningLease> DirectoryStore::lease(const EntryId& id, milliseconds patience) {
  if (state_->read_only) return nullptr;
  const std::string directory = state_->root + "/leases";
  if (const FileError error = base::make_directories(directory)) {
    state_->cannot_write(error);
    return nullptr;
  }
  const Value whole = Value(Value::Array{id.device, id.op, id.key, id.spec});
  const std::string name = base::sha256_hex(stable_json(whole), 32) + ".lock";
  auto held = std::make_unique<HeldLease>(directory + "/" + name, patience);
  if (held->lock.held()) return held;
  const FileError& error = held->lock.error();
  if (error.code != ETIMEDOUT && !state_->go_on_without(held->lock)) state_->cannot_write(error);
  return nullptr;
}

std::string DirectoryStore::where() const { return state_->root; }

bool DirectoryStore::writable() const { return !state_->read_only; }

std::string DirectoryStore::file_of(const EntryId& id) const { return state_->file_of(id); }

}  // namespace ejk
