// SPDX-License-Identifier: Apache-2.0
#include "store/snapshot.h"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include <ejk/error.h>

#include "base/directory.h"
#include "base/env.h"
#include "base/sha256.h"
#include "base/text.h"
#include "store/postgres/postgres_store.h"

namespace ejk::detail {
namespace {

using base::Absent;
using base::Directory;
using postgres::Answer;

constexpr const char* header_member = "ejk_snapshot";
constexpr int snapshot_format = 1;
constexpr size_t max_bytes = size_t{256} << 20;
constexpr size_t name_digits = 64;
constexpr const char* snapshot_folder = "snapshots";
constexpr std::string_view snapshot_suffix = ".jsonl";
// Once per launch: a job that waits for its choices waits longer than a call would.
constexpr double connect_seconds = 10, fetch_seconds = 60;

bool is_name(std::string_view text) {
  return text.size() == name_digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::io, message); }

// ---- directories

Directory snapshots_in(const std::string& store, Absent absent) {
  return Directory::at(base::expand_home(store), absent, base::trust_from_environment())
      .below(snapshot_folder, absent);
}

// nullopt: it is not there.
std::optional<std::string> read_from(const Directory& directory, const std::string& name) {
  if (directory.error().is_absent()) return std::nullopt;
  if (directory.error()) fail("cannot read snapshots: " + directory.error().text());
  auto file = directory.read(name + std::string(snapshot_suffix), max_bytes);
  if (file.error.is_absent()) return std::nullopt;
  if (file.error) fail("cannot read the snapshot: " + file.error.text());
  return std::move(file.text);
}

base::FileError write_to(const std::string& store, const std::string& name, std::string_view text) {
  const Directory root =
      Directory::at(base::expand_home(store), Absent::made, base::trust_from_environment());
  const Directory temporary = root.below("tmp", Absent::made);
  const Directory snapshots = root.below(snapshot_folder, Absent::made);
  for (const Directory* directory : {&root, &temporary, &snapshots})
    if (directory->error()) return directory->error();
  return snapshots.replace(name + std::string(snapshot_suffix), text, temporary);
}

// ---- databases

class Database {
 public:
  explicit Database(const std::string& url) : store_(url, options()) {}
  std::string where() const { return store_.where(); }
  Answer ask(const std::string& sql, std::vector<postgres::Field> parameters = {}) {
    Answer answer = store_.ask({sql, std::move(parameters), fetch_seconds});
    if (!answer)
      fail("the store at " + where() + " cannot be asked for snapshots: " + answer.why +
           cure(answer.sqlstate));
    return answer;
  }

 private:
  static std::string cure(const std::string& sqlstate) {
    if (sqlstate == postgres::no_table || sqlstate == postgres::no_function)
      return "; bring it up with ejk store upgrade";
    if (sqlstate == postgres::not_allowed) return "; grant this role ejk_admin, which publishes";
    return "";
  }
  static PostgresStore::Options options() {
    PostgresStore::Options out;
    out.connect_seconds = connect_seconds;
    out.on_warning = [](const std::string&) {};  // it is thrown
    return out;
  }
  PostgresStore store_;
};

std::optional<std::string> read_from_database(const std::string& url, const std::string& name) {
  const Answer answer =
      Database(url).ask("SELECT content FROM ejk.snapshots WHERE id = $1::bytea", {"\\x" + name});
  if (answer.rows.empty()) return std::nullopt;
  return answer.rows[0].at(0);
}

// ---- places

std::vector<std::string> default_stores() {
  std::vector<std::string> out;
  if (const std::string path = default_store_path(); !path.empty()) out.push_back(path);
  if (auto url = base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_URL"); !url.empty())
    out.push_back(std::move(url));
  for (std::string& layer : base::env_paths("EJKERNEL_PERSISTENT_CACHE_LAYERS"))
    out.push_back(std::move(layer));
  return out;
}

struct Fetched {
  std::string text, where;
};

std::optional<Fetched> fetch_from(const std::string& place, const std::string& name) {
  if (postgres::is_database_url(place)) {
    auto text = read_from_database(place, name);
    if (!text) return std::nullopt;
    return Fetched{std::move(*text), postgres::without_password(place)};
  }
  const std::string path = base::expand_home(place);
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    auto file = base::read_file(path, max_bytes);
    if (file.error) fail("cannot read the snapshot: " + file.error.text());
    return Fetched{std::move(file.text), path};
  }
  const Directory directory = snapshots_in(path, Absent::fails);
  auto text = read_from(directory, name);
  if (!text) return std::nullopt;
  return Fetched{std::move(*text), directory.path_of(name + std::string(snapshot_suffix))};
}

auto order_of(const Entry& entry) {
  return std::tie(entry.id.device, entry.id.op, entry.id.key, entry.id.spec);
}

}  // namespace

// ---- texts

std::string snapshot_text(std::vector<Entry> entries) {
  std::ranges::sort(entries,
                    [](const auto& a, const auto& b) { return order_of(a) < order_of(b); });
  std::string out = stable_json(Value::object({{header_member, snapshot_format}})) + "\n";
  for (Entry& entry : entries) {
    entry.candidates.clear();
    Value document = entry_to_document(entry);
    document.erase("candidates");
    out += to_json(document) + "\n";
  }
  return out;
}

std::vector<Entry> entries_of_snapshot(std::string_view text) {
  std::vector<Entry> out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    try {
      const Value document = parse_json(line);
      if (number++ > 0) {
        out.push_back(entry_from_document(document));
        continue;
      }
      const Value* format = document.is_object() ? document.find(header_member) : nullptr;
      if (format == nullptr) throw Error(ErrorKind::parse, "it does not begin as one");
      if (*format != Value(snapshot_format))
        throw Error(ErrorKind::parse, "its format " + stable_json(*format).substr(0, 40) +
                                          " is not known to this version");
    } catch (const Error& error) {
      throw Error(ErrorKind::parse, "this is not a snapshot: line " +
                                        std::to_string(out.size() + 1) + ": " + error.what());
    }
  }
  if (number == 0) throw Error(ErrorKind::parse, "this is not a snapshot: it is empty");
  return out;
}

std::string name_of_snapshot(std::string_view text) { return base::sha256_hex(text); }

SnapshotAddress read_snapshot_address(const std::string& text) {
  const size_t mark = text.rfind('#');
  SnapshotAddress out;
  if (mark != text.npos) out.place = text.substr(0, mark);
  out.name = mark == text.npos ? text : text.substr(mark + 1);
  if (constexpr std::string_view kind = "sha256:"; out.name.starts_with(kind))
    out.name.erase(0, kind.size());
  std::ranges::transform(out.name, out.name.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c;
  });
  if (!is_name(out.name) || (mark != text.npos && out.place.empty()))
    throw Error(ErrorKind::invalid_argument,
                "got the snapshot \"" +
                    base::printable(
                        postgres::is_database_url(text) ? postgres::without_password(text) : text) +
                    "\"; expected the 64 hex digits of its SHA-256, or PLACE#DIGITS (ejk snapshot "
                    "show lists them)");
  return out;
}

std::string fetch_snapshot(const SnapshotAddress& address) {
  const auto& [place, name] = address;
  std::vector<std::string> places = place.empty() ? default_stores() : std::vector{place};
  const std::string near = default_store_path();
  // Near first: what a name stands for never changes.
  if (!place.empty() && postgres::is_database_url(place) && !near.empty())
    places.insert(places.begin(), near);
  std::string asked;
  for (const std::string& each : places) {
    const bool database = postgres::is_database_url(each);
    asked += (asked.empty() ? "" : ", ") + (database ? postgres::without_password(each) : each);
    auto found = fetch_from(each, name);
    if (!found) continue;
    if (const std::string own = name_of_snapshot(found->text); own != name)
      fail("got a snapshot with the SHA-256 " + own + " from " + found->where + "; expected " +
           name +
           ": it was changed or is another one, and is not used. Fetch the right one "
           "(ejk snapshot fetch), or launch with the name of this one");
    if (database && !near.empty())  // who cannot keep it asks again
      static_cast<void>(!write_to(near, name, found->text));
    return std::move(found->text);
  }
  fail("there is no snapshot " + name + " in " + (asked.empty() ? "any store" : asked) +
       "; ejk snapshot fetch brings one, PLACE#HASH says where it is");
}

std::string publish_snapshot(std::string_view text, const std::string& store) {
  std::string name = name_of_snapshot(text);
  if (text.size() > max_bytes)
    fail("the snapshot has " + std::to_string(text.size()) + " bytes; at most " +
         std::to_string(max_bytes) + " are possible: publish fewer ops or devices at once");
  if (!postgres::is_database_url(store)) {
    if (const auto error = write_to(store, name, text))
      fail("cannot write the snapshot: " + error.text());
    return name;
  }
  Database database(store);
  const Answer answer = database.ask("SELECT ejk.publish($1)", {std::string(text)});
  if (answer.rows.at(0).at(0) != name)
    fail("the store at " + database.where() +
         " changed the bytes of the snapshot; its encoding "
         "must be UTF8");
  return name;
}

std::vector<PublishedSnapshot> published_snapshots(const std::string& store) {
  std::vector<PublishedSnapshot> out;
  if (postgres::is_database_url(store)) {
    const Answer answer = Database(store).ask(
        "SELECT encode(id, 'hex'), octet_length(content), author, "
        "to_char(published_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') "
        "FROM ejk.snapshots ORDER BY published_at, id");
    for (const postgres::Row& row : answer.rows)
      out.push_back({row.at(0).value_or(""), std::stoull(row.at(1).value_or("0")),
                     row.at(2).value_or(""), row.at(3).value_or("")});
    return out;
  }
  const Directory directory = snapshots_in(store, Absent::fails);
  for (const std::string& file : directory.names()) {
    const std::string name =
        file.substr(0, file.size() - std::min(file.size(), snapshot_suffix.size()));
    if (!file.ends_with(snapshot_suffix) || !is_name(name)) continue;
    if (const auto text = read_from(directory, name)) out.push_back({name, text->size(), {}, {}});
  }
  return out;
}

// ---- answering

const char* const snapshot_variable = "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT";

SnapshotStore::SnapshotStore(std::string_view text)
    : where_("snapshot " + name_of_snapshot(text)), choices_({}, where_) {
  for (Entry& entry : entries_of_snapshot(text)) choices_.take(std::move(entry));
}

std::optional<Entry> SnapshotStore::get(const EntryId& id, Detail detail,
                                        const Value* environment) {
  return choices_.get(id, detail, environment);
}

void SnapshotStore::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                             Detail detail) {
  choices_.for_each(op, visit, detail);
}

std::shared_ptr<SnapshotStore> snapshot_of_launch() {
  static std::mutex mutex;
  static std::pair<std::string, std::shared_ptr<SnapshotStore>> loaded;
  const std::string text = base::env_or_empty(snapshot_variable);
  if (text.empty()) return nullptr;
  const std::lock_guard lock(mutex);
  if (loaded.second && loaded.first == text) return loaded.second;
  try {
    auto store = std::make_shared<SnapshotStore>(fetch_snapshot(read_snapshot_address(text)));
    loaded = {text, store};
    return store;
  } catch (const Error& error) {
    throw Error(error.kind(), std::string(snapshot_variable) + ": " + error.what());
  }
}

}  // namespace ejk::detail
