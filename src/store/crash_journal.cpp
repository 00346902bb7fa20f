// SPDX-License-Identifier: Apache-2.0
// Intents as locked files, suspects as one record per op and device
// (docs/reference/store_format.md).
#include "store/crash_journal.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include <ejk/error.h>

#include "base/format.h"
#include "base/sha256.h"
#include "base/time.h"
#include "base/warn.h"
#include "store/quarantine.h"

namespace ejk::detail {
namespace {

using base::Absent;
using base::Directory;
using base::FileError;
using base::FileLock;
using std::chrono::milliseconds;
using Suspects = std::map<std::string, int>;

constexpr int journal_schema = 1;
constexpr size_t journal_limit = size_t{1} << 20;
constexpr std::string_view intent_suffix = ".intent", suspects_suffix = ".suspects";
constexpr FileLock::Wait patiently{milliseconds(1'000), milliseconds(4)};  // for one small write
constexpr size_t length_digits = 10;

bool not_allowed(int code) { return code == EACCES || code == EPERM || code == EROFS; }

// ---- the file of a running tuning --------------------------------------------------------------

// One line that says whose it is. Behind it the config that is running, after its length: a longer
// one may have stood there before.
std::string first_line(const EntryId& id) {
  const Value header = Value::object({{"schema", journal_schema},
                                      {"device", id.device},
                                      {"op", id.op},
                                      {"key", id.key},
                                      {"process", ::getpid()}});
  return stable_json(header) + "\n";
}

std::string intent_text(std::string_view config) {
  return fmt::format("{:0{}} {}\n", config.size(), length_digits, config);
}

struct LeftIntent {
  std::string device, op;
  int64_t process = 0;
  std::string config;  // stable_json; "" if nothing was running
};

// Throws Error(parse) if the text is no such file.
LeftIntent parse_intent(const std::string& text) {
  const size_t line = text.find('\n');
  if (line == text.npos) throw Error(ErrorKind::parse, "its first line has no end");
  const Value header = parse_json(std::string_view(text).substr(0, line));
  const Value *device = header.find("device"), *op = header.find("op");
  const Value* version = header.find("schema");
  if (device == nullptr || op == nullptr || version == nullptr ||
      version->as_int() != journal_schema)
    throw Error(ErrorKind::parse, "its first line is not that of an intent");
  const Value* process = header.find("process");
  LeftIntent intent{device->as_string(), op->as_string(), process ? process->as_int() : 0, ""};
  const size_t begin = line + 1 + length_digits + 1;
  if (text.size() < begin) return intent;
  const size_t length = std::strtoull(text.c_str() + line + 1, nullptr, 10);
  if (length > text.size() - begin) throw Error(ErrorKind::parse, "its config is cut off");
  if (length > 0)
    intent.config = stable_json(parse_json(std::string_view(text).substr(begin, length)));
  return intent;
}

// ---- the record of suspects --------------------------------------------------------------------

Value journal_document(const std::string& device, const std::string& op, const Suspects& suspects) {
  Value list = Value::array();
  for (const auto& [config, times] : suspects)
    list.push_back(Value::object({{"config", parse_json(config)}, {"times", times}}));
  return Value::object(
      {{"schema", journal_schema}, {"op", op}, {"device", device}, {"suspects", std::move(list)}});
}

// Throws Error(parse).
Suspects suspects_from(const Value& document) {
  const Value *version = document.find("schema"), *list = document.find("suspects");
  if (version == nullptr || list == nullptr || version->as_int() != journal_schema)
    throw Error(ErrorKind::parse, "it is not a record of suspects");
  Suspects suspects;
  for (const Value& item : list->as_array()) {
    const Value *config = item.find("config"), *times = item.find("times");
    if (config == nullptr || times == nullptr)
      throw Error(ErrorKind::parse, "a suspect has no config or no times");
    suspects[stable_json(*config)] = static_cast<int>(times->as_int());
  }
  return suspects;
}

}  // namespace

struct Journal::State {
  State(std::string path, EntryId which, Value where, WarningSink sink)
      : root(std::move(path)),
        id(std::move(which)),
        environment(std::move(where)),
        off(root.empty()),
        warn(sink ? std::move(sink) : stderr_warnings()) {}

  std::string root;
  EntryId id;
  Value environment;
  bool off;  // nothing is kept
  base::OnceWarnings warn;
  std::optional<FileLock> lock;  // on the intent file, as long as this tuning lives
  std::string intent_path;
  off_t config_at = 0;
  Suspects known;                               // when last read
  std::map<std::string, std::string> verdicts;  // configs condemned by this tuning, and why

  Directory folder(const char* name, Absent absent) const { return folder_in(root, name, absent); }
  static std::string suspects_name(const std::string& device, const std::string& op) {
    const Value whole = Value(Value::Array{device, op});
    return base::sha256_hex(stable_json(whole), 32).append(suspects_suffix);
  }

  void give_up(const FileError& error) {
    if (!std::exchange(off, true) && !not_allowed(error.code))
      warn("journal", "cannot keep a journal of running configs in " + root + " (" + error.text() +
                          "); a crash will not be remembered");
  }
  void pass_over(const std::string& path, const std::string& why) {
    warn("damaged", "passing over " + path + ": " + why);
  }

  // ---- suspects

  Suspects read_suspects(const Directory& in, const std::string& name) {
    const base::FileText read = in.read(name, journal_limit);
    if (read.error.is_absent() || in.refused()) return {};
    if (!read.error && read.text.empty()) return {};  // by a power cut: it is not flushed
    try {
      if (read.error) pass_over(in.path_of(name), read.error.text());
      else return suspects_from(parse_json(read.text));
    } catch (const Error& problem) {
      pass_over(in.path_of(name), problem.what());
    }
    return {};
  }

  // Changes the record while no other process does. False if it could not be written.
  template <class Change>
  bool change_suspects(const std::string& device, const std::string& op, Change change) {
    const FileLock held(folder("locks", Absent::made), "journal", patiently,
                        FileLock::AfterUse::keep_file);
    if (!held.held()) return give_up(held.error()), false;
    const Directory in = folder("journal", Absent::made);
    const std::string name = suspects_name(device, op);
    Suspects suspects = read_suspects(in, name);
    change(suspects);
    const std::string text = to_json(journal_document(device, op, suspects), 1) + "\n";
    // Not flushed: what a power cut takes away would only have been tried last.
    const FileError error = suspects.empty() ? in.remove(name)
                                             : in.replace(name, text, folder("tmp", Absent::made),
                                                          base::Written::unflushed);
    if (error && error.code != ENOENT) return give_up(error), false;
    return true;
  }

  // ---- what dead processes left behind

  // A few at a time, because anyone may have left any number.
  void collect() {
    if (off) return;
    constexpr size_t max_names = 1000, max_dead = 16;
    const Directory in = folder("journal", Absent::fails);
    const auto names = in.some_names(intent_suffix, max_names);
    size_t dead = 0;
    for (size_t i = 0; i < names.size() && dead < max_dead && !off; ++i)
      if (in.has_own_file(names[i])) dead += collect_file(in, names[i]);
    known = read_suspects(in, suspects_name(id.device, id.op));
  }

  // False for a living tuning: its lock cannot be had.
  bool collect_file(const Directory& in, const std::string& name) {
    const FileLock dead(folder("journal", Absent::fails), name, {}, FileLock::AfterUse::keep_file);
    if (!dead.held()) return false;
    const auto [text, error, strange] = in.read(name, journal_limit);
    try {
      if (error) throw Error(ErrorKind::io, error.text());
      const LeftIntent left = text.empty() ? LeftIntent{} : parse_intent(text);
      const bool kept =
          left.config.empty() ||
          change_suspects(left.device, left.op, [&](Suspects& s) { ++s[left.config]; });
      if (kept) (void)in.remove(name);
    } catch (const Error& problem) {
      pass_over(in.path_of(name), problem.what());
    }
    return true;
  }

  // ---- intents

  void open_intent() {
    Directory in = folder("journal", Absent::made);
    const std::string name = base::random_digits().append(intent_suffix);
    intent_path = in.path_of(name);
    lock.emplace(std::move(in), name, patiently, FileLock::AfterUse::remove_file);
    if (!lock->held()) return give_up(lock->error());
    const std::string header = first_line(id);
    config_at = static_cast<off_t>(header.size());
    if (const auto error = base::write_at(lock->file(), header, 0, intent_path)) give_up(error);
  }

  void write_intent(const std::string& config) {
    if (!off && !lock) open_intent();
    if (off) return;
    const std::string text = intent_text(config);
    if (const auto error = base::write_at(lock->file(), text, config_at, intent_path))
      give_up(error);
  }
};

Journal::Journal(std::string store_path, EntryId id, Value environment, WarningSink warn)
    : state_(std::make_unique<State>(std::move(store_path), std::move(id), std::move(environment),
                                     std::move(warn))) {
  state_->collect();
}

Journal::~Journal() = default;

void Journal::intend(const Value& config) { state_->write_intent(stable_json(config)); }

void Journal::done() {
  if (state_->lock) state_->write_intent("");
}

std::map<std::string, int> Journal::suspects() const { return state_->known; }

void Journal::acquit(const Value& config) {
  const std::string text = stable_json(config);
  if (state_->off || state_->known.erase(text) == 0) return;
  state_->change_suspects(state_->id.device, state_->id.op,
                          [&](Suspects& suspects) { suspects.erase(text); });
}

void Journal::condemn(const Value& config, std::string why) {
  state_->verdicts[stable_json(config)] = why;
  if (state_->off) return;
  const QuarantineRecord record{state_->id, config, state_->environment, std::move(why),
                                base::utc_now()};
  if (const auto error = quarantine_put(state_->root, record)) state_->give_up(error);
}

std::optional<std::string> Journal::condemned(const Value& config) const {
  const auto found = state_->verdicts.find(stable_json(config));
  if (found != state_->verdicts.end()) return found->second;
  if (state_->off) return std::nullopt;
  return quarantine_reason(state_->root, {state_->id, config, state_->environment, "", ""});
}

Directory folder_in(const std::string& store_path, const char* name, Absent absent) {
  return Directory::at(store_path, absent, base::trust_from_environment()).below(name, absent);
}

std::vector<SuspectsFile> suspects_files(const std::string& store_path, const WarningSink& warn) {
  const Directory folder = folder_in(store_path, "journal");
  std::vector<SuspectsFile> out;
  for (const std::string& name : folder.names()) {
    if (!name.ends_with(suspects_suffix)) continue;
    SuspectsFile file{name, "", "", {}};
    const auto [text, error, strange] = folder.read(name, journal_limit);
    if (error.code == ENOENT || (!error && text.empty())) continue;
    try {
      if (error) throw Error(ErrorKind::io, error.text());
      const Value document = parse_json(text);
      file.suspects = suspects_from(document);
      const Value *device = document.find("device"), *op = document.find("op");
      if (device == nullptr || op == nullptr) throw Error(ErrorKind::parse, "it names no op");
      file.device = device->as_string(), file.op = op->as_string();
      out.push_back(std::move(file));
    } catch (const Error& problem) {
      warn("passing over " + folder.path_of(name) + ": " + problem.what());
    }
  }
  return out;
}

std::unique_ptr<base::FileLock> lock_suspects(const std::string& store_path) {
  auto lock = std::make_unique<FileLock>(folder_in(store_path, "locks", Absent::made), "journal",
                                         patiently, FileLock::AfterUse::keep_file);
  return lock->held() ? std::move(lock) : nullptr;
}

std::optional<Value> left_running(const std::string& store_path, int64_t process) {
  const Directory folder = folder_in(store_path, "journal");
  for (const std::string& name : folder.names()) {
    if (!name.ends_with(intent_suffix) || !folder.has_own_file(name)) continue;
    const auto [text, error, strange] = folder.read(name, journal_limit);
    if (error || text.empty()) continue;
    try {
      const LeftIntent left = parse_intent(text);
      if (left.process == process && !left.config.empty()) return parse_json(left.config);
    } catch (const Error&) {
      continue;  // a file of another version: the next tuning warns of it
    }
  }
  return std::nullopt;
}

}  // namespace ejk::detail
