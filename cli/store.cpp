// SPDX-License-Identifier: Apache-2.0
// ejk store: the format of a store, and databases that are one. The only thing that changes a
// database's schema.
#include <ejk/tuner.h>

#include "record/sending.h"
#include "store/postgres/libpq.h"
#include "store/postgres/postgres_store.h"
#include "store/shared.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct StoreOptions {
  std::string store;  // of push: what is sent; else a directory or a URL
  std::string url;
  bool all = false;  // of push: not only what is in the outbox
};

using detail::postgres::Answer;
using detail::postgres::Link;

// People wait longer than calls do.
constexpr double connect_seconds = 10, script_seconds = 600;

std::string url_of(const StoreOptions& options) {
  const std::string url = shared_or(options.url);
  if (url.empty())
    throw Failure(exit_usage,
                  "got no database; expected postgresql://user@host/database, or "
                  "EJKERNEL_PERSISTENT_CACHE_URL");
  if (!detail::postgres::libpq().why_not.empty())
    throw Failure(exit_failed, detail::postgres::libpq().why_not);
  if (!options.url.empty())
    static_cast<void>(words_read([&] { return detail::postgres::read_address(url); }));
  return url;
}

// A connection that asks nothing of the database but that it answers.
class Database {
 public:
  explicit Database(const std::string& url) : link_(detail::postgres::read_address(url), quiet()) {}

  const std::string& where() const { return link_.where(); }
  Answer ask(const std::string& sql) {
    Answer answer = link_.ask({sql, {}, script_seconds, true});
    if (!answer) throw Failure(exit_failed, where() + ": " + answer.why);
    return answer;
  }
  bool has_store() { return ask("SELECT to_regclass('ejk.meta')").rows.at(0).at(0).has_value(); }
  int version() {
    return std::stoi(ask("SELECT version FROM ejk.meta").rows.at(0).at(0).value_or("0"));
  }

 private:
  static Link::Options quiet() {
    Link::Options out;
    out.connect_seconds = connect_seconds;
    out.on_warning = [](const std::string&) {};  // it is thrown
    return out;
  }
  Link link_;
};

std::string version_text(int version) { return "schema version " + std::to_string(version); }

int upgrade_database(const std::string& url, Output& out) {
  Database database(url);
  if (!database.has_store())
    throw Failure(exit_nothing, database.where() + " has no store; make one with ejk store init");
  const int version = database.version();
  if (version > detail::postgres_schema)
    throw Failure(exit_failed, database.where() + " has " + version_text(version) +
                                   ", which is newer than this tool; use a newer one");
  if (version == detail::postgres_schema)
    out.line("nothing to do: " + database.where() + " has " + version_text(version));
  else {
    database.ask(detail::postgres_schema_script(version));
    out.line(database.where() + " has " + version_text(database.version()) + " now");
  }
  out.document(Value::object({{"store", database.where()}, {"version", detail::postgres_schema}}));
  return exit_ok;
}

int store_init_verb(const StoreOptions& options, Output& out) {
  Database database(url_of(options));
  const bool there = database.has_store();
  if (!there) database.ask(detail::postgres_schema_script());
  const int version = database.version();
  if (there) out.line(database.where() + " has a store already: " + version_text(version));
  else {
    out.line(database.where() + " has a store now: " + version_text(version));
    out.line(
        "next: GRANT ejk_reader TO programs that only read, ejk_writer TO hosts that tune, "
        "ejk_admin TO people who publish, replace and erase");
  }
  out.document(
      Value::object({{"store", database.where()}, {"version", version}, {"made", !there}}));
  return exit_ok;
}

int store_check_verb(const StoreOptions& options, Output& out) {
  const std::string url = url_of(options);
  Problems problems;
  detail::PostgresStore store(url, patient_options(problems));
  const Answer answer = store.ask(
      {"SELECT version, min_client, current_user, current_setting('server_version'), "
       "coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false), "
       "(SELECT count(*) FROM ejk.entries), (SELECT count(DISTINCT device) FROM ejk.entries) "
       "FROM ejk.meta",
       {},
       connect_seconds});
  if (!answer) {
    out.document(Value::object({{"store", store.where()},
                                {"usable", false},
                                {"why", answer.why},
                                {"problems", problems.to_value()}}));
    if (problems.list().empty()) say(store.where() + ": " + answer.why);
    return exit_unfit;
  }
  const auto text = [&](size_t i) { return answer.rows.at(0).at(i).value_or(""); };
  const char* may = store.may_replace() ? "read, write, replace and erase"
                    : store.writable()  ? "read and write"
                                        : "read";
  out.facts(
      {{"store", store.where()},
       {"schema", "version " + text(0)},
       {"server", "PostgreSQL " + text(3) + (text(4) == "t" ? ", over TLS" : ", without TLS")},
       {"role", text(2) + ", which may " + may},
       {"entries", text(5) + " of " + text(6) + " devices"}});
  out.document(Value::object({{"store", store.where()},
                              {"usable", true},
                              {"version", std::stoi(text(0))},
                              {"server", text(3)},
                              {"tls", text(4) == "t"},
                              {"role", text(2)},
                              {"writable", store.writable()},
                              {"may_replace", store.may_replace()},
                              {"entries", std::stoll(text(5))},
                              {"problems", problems.to_value()}}));
  return exit_ok;
}

int store_push_verb(const StoreOptions& options, Output& out) {
  const std::string url = url_of(options);
  Problems problems;
  const std::string path = store_paths(options.store).front();
  const detail::PostgresStore::Options with = patient_options(problems);
  detail::SharedStore store(
      std::make_shared<DirectoryStore>(path, DirectoryStore::Options{.read_only = false,
                                                                     .on_warning = problems.sink(),
                                                                     .environment = {}}),
      url, with);
  const StopOnInterrupt stop;
  Progress progress;
  const auto what = options.all ? detail::Push::everything : detail::Push::noted;
  const auto [sent, refused, left] = store.push(what, [&](size_t done) {
    progress.show("sending to " + store.far().where() + ": " + std::to_string(done) + " entries");
    return !stop.requested();
  });
  const std::string folder = records_of(options.store);
  const detail::CallSender::Sent calls =
      folder.empty() ? detail::CallSender::Sent{}
                     : detail::CallSender(folder, url, with).push(what, [&](size_t done) {
                         progress.show("sending to " + store.far().where() + ": " +
                                       std::to_string(done) + " recorded calls");
                         return !stop.requested();
                       });
  out.line(store.far().where() + " got " + count_text(sent, "entry", "entries") + " and " +
           count_text(calls.sent, "recorded call", "recorded calls"));
  if (refused + calls.refused > 0)
    out.line(count_text(refused, "entry", "entries") + " and " +
             count_text(calls.refused, "recorded call", "recorded calls") + " refused");
  if (left + calls.left > 0)
    out.line(count_text(left, "entry", "entries") + " and " +
             count_text(calls.left, "recorded call", "recorded calls") +
             " not sent; the same command goes on with them");
  out.document(Value::object({{"store", store.far().where()},
                              {"from", path},
                              {"sent", sent},
                              {"refused", refused},
                              {"left", left},
                              {"calls_sent", calls.sent},
                              {"calls_refused", calls.refused},
                              {"calls_left", calls.left},
                              {"problems", problems.to_value()}}));
  if (stop.requested()) return exit_interrupted;
  return refused + left + calls.refused + calls.left > 0 ? exit_failed : exit_ok;
}

int store_upgrade_verb(const StoreOptions& options, Output& out) {
  if (is_shared(options.store)) return upgrade_database(options.store, out);
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

void add_url(const VerbLine& line, StoreOptions& to) {
  line.value("url", to.url, "URL",
             "postgresql://user@host/database; default: "
             "EJKERNEL_PERSISTENT_CACHE_URL");
}

}  // namespace

void add_store(Verbs& verbs) {
  Verbs store =
      verbs.group("store", "Work on a store: its format, or a database that serves as one");
  store.add<StoreOptions>({"init", "Make a store in a database, and the roles that may use it",
                           "ejk store init postgresql://admin@host/tunings"},
                          store_init_verb, add_url);
  store.add<StoreOptions>({"check", "Check whether a database can be used as a store, and for what",
                           "ejk store check postgresql://user@host/tunings"},
                          store_check_verb, add_url);
  store.add<StoreOptions>(
      {"upgrade", "Bring a store or a database to the present format", "ejk store upgrade"},
      store_upgrade_verb, [](const VerbLine& line, StoreOptions& to) {
        line.value("store", to.store, "STORE",
                   "A directory or a URL; default: "
                   "EJKERNEL_PERSISTENT_CACHE_DIR");
      });
  store.add<StoreOptions>(
      {"push", "Send a database the entries that it has not received yet", "ejk store push --all"},
      store_push_verb, [](const VerbLine& line, StoreOptions& to) {
        add_url(line, to);
        line.directory(to.store);
        line.flag("--all", to.all,
                  "All entries and recorded calls of this machine, not only "
                  "what is waiting");
      });
}

}  // namespace ejk::cli
