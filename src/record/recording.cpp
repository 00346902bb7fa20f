// SPDX-License-Identifier: Apache-2.0
// A folder with one JSON file per recorded call.
#include <ejk/record.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include <ejk/detail/call_counts.h>
#include <ejk/detail/hash.h>
#include <ejk/error.h>
#include <ejk/names.h>

#include "base/directory.h"
#include "base/env.h"
#include "base/hidden.h"
#include "base/sha256.h"
#include "base/time.h"
#include "base/warn.h"
#include "choose/scope.h"
#include "record/folder.h"
#include "record/sending.h"
#include "store/postgres/address.h"

namespace ejk {

namespace {

using base::Absent;
using base::Directory;
using base::FileError;
using detail::CallSender;
using detail::CallTotals;
using std::chrono::milliseconds;

// Others hold the lock while they write some files. A lost flush is tried again, but not the last
// one, and many processes may end together.
constexpr milliseconds patience{1'000}, last_patience{10'000}, pause{5};
// Calls that are written at a time, so that others get the lock in between.
constexpr size_t batch = 1000;
// So many calls stay in memory, to be written anew if their files go; of further ones only where
// they are. A program with more of them makes too many keys, most likely.
constexpr size_t many_calls = 10'000;
// Words of bucketed keys may differ for one call without end.
constexpr size_t max_words = 100'000;
// What the end of a program may take for writing counts, and for sending them.
constexpr double max_seconds_at_end = 30, last_send_seconds = 1;

// Counts that are not yet in the folder.
CallTotals difference(const CallTotals& now, const CallTotals& then) {
  return {now.calls - then.calls, now.timed - then.timed, now.nanoseconds - then.nanoseconds};
}

const Value& member(const Value& document, std::string_view name) {
  const Value* found = document.find(name);
  if (found == nullptr)
    throw Error(ErrorKind::parse, "the record has no member \"" + std::string(name) + "\"");
  return *found;
}

// A kernel may make its keys itself; the spec is then the key.
bool is_own_key(const EntryId& id) {
  return id.spec == stable_json(Value::object({{"key", id.key}}));
}

template <class E>
E named_in(const Value& document, std::string_view what) {
  const std::string& name = member(document, what).as_string();
  if (const auto found = named<E>(name)) return *found;
  throw Error(ErrorKind::parse, "unknown " + std::string(what) + " \"" + name + "\"");
}

}  // namespace

// ---- documents ----------------------------------------------------------------------------------

double RecordedCall::seconds() const {
  if (timed_calls == 0) return 0;
  return timed_seconds / static_cast<double>(timed_calls) * static_cast<double>(calls);
}

Value record_to_document(const RecordedCall& call) {
  return Value::object({{"schema", record_schema},
                        {"op", call.id.op},
                        {"key", call.id.key},
                        {"device", call.id.device},
                        {"platform", platform_name(call.platform)},
                        {"context", context_name(call.context)},
                        {"spec", call.id.spec},
                        {"members", call.members},
                        {"batch_axes", call.batch_axes},
                        {"arguments", call.arguments},
                        {"calls", call.calls},
                        {"timed_calls", call.timed_calls},
                        {"timed_seconds", call.timed_seconds},
                        {"first", call.first},
                        {"last", call.last}});
}

RecordedCall record_from_document(const Value& document) {
  if (!document.is_object()) throw Error(ErrorKind::parse, "a record is a JSON object");
  if (const int64_t schema = member(document, "schema").as_int(); schema != record_schema)
    throw Error(ErrorKind::parse, "the record is of schema " + std::to_string(schema));
  RecordedCall call;
  call.id = {member(document, "device").as_string(), member(document, "op").as_string(),
             member(document, "key").as_string(), member(document, "spec").as_string()};
  call.platform = named_in<Platform>(document, "platform");
  call.context = named_in<Context>(document, "context");
  call.members = member(document, "members");
  call.batch_axes = member(document, "batch_axes");
  call.arguments = member(document, "arguments");
  if (!call.arguments.is_null() && !call.arguments.is_array())
    throw Error(ErrorKind::parse, "the record's arguments are not a list");
  call.calls = member(document, "calls").as_uint();
  call.timed_calls = member(document, "timed_calls").as_uint();
  call.timed_seconds = member(document, "timed_seconds").as_double();
  // Plans and coverage add these up: one NaN would make all sums NaN, two absurd ones infinite.
  constexpr uint64_t most_calls = uint64_t{1} << 53;
  if (call.calls > most_calls || call.timed_calls > most_calls ||
      !std::isfinite(call.timed_seconds) || call.timed_seconds < 0)
    throw Error(ErrorKind::parse, "the record's counts make no sense");
  call.timed_seconds = std::min(call.timed_seconds, detail::max_timed_seconds);
  call.first = member(document, "first").as_string();
  call.last = member(document, "last").as_string();
  if (call.id.key != short_hash(std::string_view(call.id.spec)) && !is_own_key(call.id))
    throw Error(ErrorKind::parse, "the record's key is not that of its spec");
  return call;
}

// ---- recording ----------------------------------------------------------------------------------

struct EJK_HIDDEN Recording::State {
  State(std::string path, Options given)
      : folder(std::move(path)),
        options(std::move(given)),
        warn(options.on_warning ? options.on_warning : stderr_warnings()) {
    if (options.database.empty()) return;
    detail::PostgresStore::Options far;
    far.on_warning = options.on_warning;
    far.meanwhile = "Recorded calls stay in " + folder + " and are sent later";
    sender = std::make_unique<CallSender>(folder, options.database, std::move(far));
  }

  // Of device, op and spec.
  using Digest = std::array<uint64_t, 2>;
  struct DigestHash {
    size_t operator()(const Digest& d) const { return d[0]; }
  };
  static Digest digest_of(const EntryId& id) {
    const auto bytes = base::sha256(id.device + '\n' + id.op + '\n' + id.spec);
    Digest out;
    static_assert(sizeof out <= sizeof bytes);
    std::memcpy(out.data(), bytes.data(), sizeof out);
    return out;
  }
  // Where a call is kept.
  struct Place {
    std::shared_ptr<const std::string> folder;  // shared by the calls of an op
    std::string name;
  };
  struct Slot {
    uint32_t record;
    std::shared_ptr<const RecordedCall> call;  // nullptr: it is on disk, and one of many
    CallTotals written;
    bool on_disk = false;
    Place place = {};
    bool to_send = false;
  };
  struct WordsHash {
    size_t operator()(const std::vector<uint64_t>& w) const {
      return detail::hash_words(w.data(), w.size());
    }
  };

  std::string folder;
  Options options;
  base::OnceWarnings warn;
  const base::Trust trust = base::trust_from_environment();
  const pid_t owner = ::getpid();

  std::mutex mutex;
  std::vector<Slot> slots;
  std::unordered_map<std::vector<uint64_t>, uint32_t, WordsHash> by_words;
  std::unordered_map<Digest, uint32_t, DigestHash> by_digest;
  std::unordered_map<std::string, std::shared_ptr<const std::string>> folders;
  bool fresh = false;  // a slot has come since the last flush
  bool ends = false;
  std::condition_variable woken;

  std::mutex writing;           // held by the one who flushes
  std::optional<size_t> files;  // in the folder, once a flush needs to know
  size_t added_files = 0;       // of them, since they were counted
  bool cleaned = false;
  std::unique_ptr<CallSender> sender;  // of the thread, and of the destructor behind it
  std::optional<double> send_at;       // set by the first that is to be sent
  bool sent_what_others_left = false;
  std::thread thread;

  // ---- in memory

  uint32_t add(const Invocation& inv, const AnyKernel& kernel) {
    RecordedCall call;
    call.id = {inv.device->fingerprint, inv.op(), {}, inv.spec()};
    const Digest digest = digest_of(call.id);
    {
      const std::lock_guard lock(mutex);
      if (const auto known = by_digest.find(digest); known != by_digest.end())
        return remember(inv.words, known->second);
      if (slots.size() >= options.most_calls) return too_many();
    }
    call.id.key = inv.call_key();
    call.platform = inv.platform, call.context = inv.context;
    call.members = inv.members, call.batch_axes = inv.batch_axes;
    try {
      call.arguments = kernel.sketch();  // looks at the data: not under the lock
    } catch (const std::exception& error) {
      warn("sketch " + call.id.op,
           "[" + call.id.op + "] a call is recorded without its arguments: " + error.what());
    }
    call.first = call.last = base::utc_now();

    const std::lock_guard lock(mutex);
    const auto [it, is_new] = by_digest.try_emplace(digest, 0);
    if (is_new) {
      it->second = detail::new_call_record();
      Place place{shared_folder(detail::record_folder(call.id)), detail::record_name(call.id)};
      slots.push_back({it->second,
                       std::make_shared<const RecordedCall>(std::move(call)),
                       {},
                       false,
                       std::move(place)});
      if (slots.size() == many_calls + 1) many();
      fresh = true;
      start();
      woken.notify_one();
    }
    return remember(inv.words, it->second);
  }

  uint32_t remember(const std::vector<uint64_t>& words, uint32_t record) {
    if (!words.empty() && by_words.size() < max_words) by_words.try_emplace(words, record);
    return record;
  }

  std::shared_ptr<const std::string> shared_folder(std::string path) {
    auto& shared = folders[path];
    if (!shared) shared = std::make_shared<const std::string>(std::move(path));
    return shared;
  }

  void many() {
    warn("many", "more than " + std::to_string(many_calls) + " different calls are recorded in " +
                     folder +
                     ". If they should be fewer, a key hook or ejk::Unkeyed makes fewer "
                     "keys");
  }

  uint32_t too_many() {
    warn("too many", "more than " + std::to_string(options.most_calls) +
                         " different calls are recorded in " + folder +
                         "; further ones are not. A key hook or ejk::Unkeyed makes fewer keys");
    return 0;
  }

  // ---- on disk

  void start() {
    if (thread.joinable()) return;
    try {
      thread = std::thread([this] { write_now_and_then(); });
    } catch (const std::system_error& error) {
      warn("thread", std::string("recorded calls are written at the end only: ") + error.what());
    }
  }

  void write_now_and_then() {
    std::unique_lock lock(mutex);
    while (!ends) {
      woken.wait_for(lock, base::duration_of(options.interval_seconds),
                     [&] { return ends || fresh; });
      if (!ends && fresh)
        woken.wait_for(lock, base::duration_of(options.first_write_seconds), [&] { return ends; });
      if (ends) return;  // the destructor writes
      fresh = false;
      lock.unlock();
      flush();
      if (sender) send_now_and_then();
      lock.lock();
    }
  }

  // ---- to a database

  void send_now_and_then() {
    const double now = base::seconds_now();
    // Many machines begin at the same time.
    if (!send_at) send_at = now + options.send_seconds * detail::postgres::random_number();
    if (now < *send_at) return;
    send_at = now + options.send_seconds;
    const auto go_on = [this](size_t) {
      const std::lock_guard lock(mutex);
      return !ends;
    };
    if (!send(go_on) || std::exchange(sent_what_others_left, true)) return;
    sent_what_others_left = sender->push(detail::Push::noted, go_on).left == 0;
  }

  // False if something is left.
  bool send(const CallSender::GoOn& go_on) {
    std::vector<CallSender::File> some;
    std::vector<size_t> taken;
    for (size_t slot = 0;;) {
      {
        const std::lock_guard lock(mutex);
        for (some.clear(), taken.clear(); slot < slots.size() && some.size() < batch; ++slot) {
          if (!std::exchange(slots[slot].to_send, false)) continue;
          taken.push_back(slot);
          some.push_back({*slots[slot].place.folder, slots[slot].place.name});
        }
      }
      if (taken.empty()) break;
      if (sender->send(some, go_on).left == 0) continue;
      const std::lock_guard lock(mutex);
      for (const size_t i : taken) slots[i].to_send = true;
      return false;
    }
    const std::lock_guard writer(writing);
    const std::lock_guard lock(mutex);
    for (const Slot& slot : slots)
      if (slot.to_send) return true;  // written meanwhile
    sender->take_note_back();
    return true;
  }

  struct Dirty {
    size_t slot;
    std::shared_ptr<const RecordedCall> call;
    CallTotals now, added;
    Place place;
  };
  // The next ones from that slot on.
  std::vector<Dirty> dirty(size_t& slot) {
    const std::lock_guard lock(mutex);
    std::vector<Dirty> out;
    for (; slot < slots.size() && out.size() < batch; ++slot) {
      const Slot& s = slots[slot];
      const CallTotals now = detail::call_totals(s.record);
      const CallTotals added = difference(now, s.written);
      if (s.on_disk && added.calls == 0 && added.timed == 0) continue;
      out.push_back({slot, s.call, now, added, s.place});
    }
    return out;
  }

  Directory open() {
    Directory top = Directory::at(folder, Absent::made, trust);
    if (!top.exposed().empty())
      warn("exposed", "everyone may write to " + top.exposed() + ", where calls are recorded; " +
                          "take that right away (chmod o-w)");
    return top;
  }

  bool flush(milliseconds for_lock = patience, double max_seconds = 0) {
    const std::lock_guard one_at_a_time(writing);
    const double begin = base::seconds_now();
    bool good = true;
    for (size_t slot = 0;;) {
      std::vector<Dirty> some = dirty(slot);
      if (some.empty()) return good;
      if (max_seconds > 0 && base::seconds_now() - begin > max_seconds) return too_slow();
      const auto written = write_some(some, for_lock);
      if (!written) return false;
      good = *written && good;
    }
  }

  // nullopt: nothing can be written now.
  std::optional<bool> write_some(std::vector<Dirty>& some, milliseconds for_lock) {
    const Directory top = open(), temporary = top.below("tmp", Absent::made);
    if (temporary.error()) return cannot_write(temporary.error()), std::nullopt;
    // Counts are read and written again: one process at a time.
    const base::FileLock lock(open(), "lock", {for_lock, pause},
                              base::FileLock::AfterUse::keep_file);
    if (!lock.held() && !lock.error().has_no_locks())
      return cannot_write(lock.error()), std::nullopt;
    if (!cleaned) temporary.remove_leftovers(), cleaned = true;
    // Others may have added some since. Many are not counted again for a few more.
    if (files && (*files < many_calls || added_files > *files / 100)) files.reset();
    bool good = true;
    if (sender) sender->leave_note();
    std::optional<Directory> in;  // of the last one: most are of few ops
    for (Dirty& d : some) {
      if (!in || in->path() != top.path_of(*d.place.folder))
        in = top.below(*d.place.folder, Absent::made);
      const bool kept = write(d, top, *in, temporary);
      good = good && kept;
      if (!kept) continue;
      const std::lock_guard guard(mutex);
      slots[d.slot].written = d.now;
      slots[d.slot].on_disk = true;
      slots[d.slot].to_send = sender != nullptr;
      if (d.slot >= many_calls) slots[d.slot].call.reset();
    }
    return good;
  }

  // False if it should be tried again.
  bool write(Dirty& d, const Directory& top, const Directory& in, const Directory& temporary) {
    if (in.error()) return cannot_write(in.error());
    const std::string& name = d.place.name;
    const std::string path = in.path_of(name);
    detail::LoadedRecord present = detail::load_record(in, name);
    if (present.newer) {
      warn("kept " + path, "not writing over " + path + ": " + present.why);
      return false;
    }
    if (d.call == nullptr && !present.call) {
      warn("lost", path +
                       ", a record of one of many calls, is gone or damaged; it is not "
                       "recorded again by this process");
      return true;
    }
    if (present.absent && count_files(top) >= options.most_calls) return too_many(), false;
    RecordedCall call = d.call != nullptr ? *d.call : *present.call;
    call.last = base::utc_now();
    if (present.call && present.call->id.spec == call.id.spec) {
      call.first = std::min(call.first, present.call->first);
      call.calls = present.call->calls;
      call.timed_calls = present.call->timed_calls;
      call.timed_seconds = present.call->timed_seconds;
    } else if (!present.absent)
      warn(path, path + " is not a record (" + present.why + "); it is written anew");
    call.calls += d.added.calls;
    call.timed_calls += d.added.timed;
    call.timed_seconds += 1e-9 * static_cast<double>(d.added.nanoseconds);

    const std::string text = to_json(record_to_document(call), 1) + "\n";
    if (text.size() > detail::max_record_bytes) {
      warn("large " + path, "[" + call.id.op + "] a call with " + std::to_string(text.size()) +
                                " bytes of arguments is not recorded");
      return true;  // never will be
    }
    // A record that a power cut empties is written anew; waiting for the disk would delay the end
    // of the program.
    const FileError error = in.replace(name, text, temporary, base::Written::unflushed);
    if (error) return cannot_write(error);
    if (present.absent) ++*files, ++added_files;
    return true;
  }

  // Of a flush, which holds the lock: all that any process has recorded.
  size_t count_files(const Directory& top) {
    if (!files) {
      files = added_files = 0;
      detail::for_each_record_file(top, [&](const Directory&, const std::string&) { ++*files; });
    }
    return *files;
  }

  bool too_slow() {
    warn("slow", "writing recorded calls to " + folder + " takes long; the last counts are lost");
    return false;
  }

  bool cannot_write(const FileError& error) {
    if (error.code == ETIMEDOUT)
      warn(
          "busy",
          "another process holds " + folder +
              "/lock for long; what cannot be recorded by the end of this program is lost. If that "
              "process is stopped, end it");
    else
      warn("unwritable", "cannot record calls in " + folder + " (" + error.text() +
                             "); set EJKERNEL_OPS_RECORD_DIR to another directory");
    return false;
  }
};

Recording::Recording(std::string folder, Options options) {
  if (folder.empty() || folder.find('\0') != folder.npos)
    throw Error(ErrorKind::invalid_argument,
                "a recording needs the path of a folder, not " + stable_json(Value(folder)));
  state_ = std::make_unique<State>(std::move(folder), std::move(options));
}

Recording::~Recording() {
  if (::getpid() != state_->owner) {  // its thread is not in this process: nothing is freed
    static_cast<void>(new (std::nothrow) std::shared_ptr<State>(std::move(state_)));
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
    state_->woken.notify_all();
  }
  if (state_->thread.joinable()) state_->thread.join();
  try {
    state_->flush(last_patience, max_seconds_at_end);
    const double until = base::seconds_now() + last_send_seconds;
    if (state_->sender && !state_->sender->database().is_away())
      state_->send([&](size_t) { return base::seconds_now() < until; });
  } catch (const std::exception& error) {
    state_->warn("end", std::string("the last counts of recorded calls are lost: ") + error.what());
  }
}

bool Recording::flush() { return state_->flush(); }

const std::string& Recording::folder() const { return state_->folder; }

uint32_t Recording::record(const Invocation& inv, const AnyKernel& kernel) {
  if (::getpid() != state_->owner) return 0;  // the lock may be held by a thread that is not here
  if (!inv.words.empty()) {
    const std::lock_guard lock(state_->mutex);
    if (const auto known = state_->by_words.find(inv.words); known != state_->by_words.end())
      return known->second;
  }
  return state_->add(inv, kernel);
}

// ---- where --------------------------------------------------------------------------------------

std::string default_recording_path() {
  if (const auto path = base::env("EJKERNEL_OPS_RECORD_DIR"); path && !path->empty()) return *path;
  const std::string store = default_store_path();
  return store.empty() ? store : store + "/recorded";
}

static Recording::Options of_environment() {
  Recording::Options options;
  options.database = base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_URL");
  return options;
}

std::string default_recordings() {
  const std::string database = base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_URL");
  return database.empty() ? default_recording_path() : database;
}

std::shared_ptr<Recording> recording_from_environment() {
  const std::string word = base::env("EJKERNEL_OPS_RECORD").value_or("");
  if (word.empty() || word == "0") return nullptr;
  if (word != "1")
    throw Error(ErrorKind::invalid_argument,
                "EJKERNEL_OPS_RECORD is \"" + word + "\"; it must be \"1\" or \"0\"");
  const std::string path = default_recording_path();
  if (path.empty()) {
    stderr_warnings()(
        "calls are not recorded: there is no home directory to record them in; set "
        "EJKERNEL_OPS_RECORD_DIR");
    return nullptr;
  }
  static std::mutex mutex;
  static std::weak_ptr<Recording> shared;
  const std::lock_guard lock(mutex);
  auto recording = shared.lock();
  if (!recording || recording->folder() != path)
    shared = recording = std::make_shared<Recording>(path, of_environment());
  return recording;
}

Scope record_calls(std::shared_ptr<Recording> recording) {
  auto node = std::make_shared<detail::ScopeNode>();
  node->recording = std::move(recording);
  return Scope(std::move(node));
}

Recording* detail::scoped_recording() {
  for (auto* scope = live_scopes(); scope != nullptr; scope = scope->outer.get())
    if (scope->recording && scope->active.load(std::memory_order_acquire))
      return scope->recording.get();
  return nullptr;
}

}  // namespace ejk
