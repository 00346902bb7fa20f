// SPDX-License-Identifier: Apache-2.0
#include "store/postgres/postgres_store.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include <ejk/error.h>
#include <ejk/names.h>
#include <ejk_kernels/schema_2_sql.h>
#include <ejk_kernels/schema_3_sql.h>
#include <ejk_kernels/schema_sql.h>

#include "base/directory.h"
#include "base/sha256.h"
#include "base/text.h"
#include "store/entry_file.h"
#include "store/keep.h"

namespace ejk::detail {

using postgres::Answer;
using postgres::array_of;
using postgres::Field;
using postgres::Link;
using postgres::no_function;
using postgres::no_table;
using postgres::not_allowed;
using postgres::Query;
using postgres::Row;
using postgres::Trouble;

namespace {

// Best first, within one call; $1 is always the environment of the question. The same order as
// answers_before.
#define EJK_BEST_FIRST                                                                    \
  "measured DESC, (env_id = $1::bytea) DESC, answers DESC, complete DESC, samples DESC, " \
  "measured_at DESC, candidate_count DESC, digest DESC"
#define EJK_IDS "encode(call_id, 'hex'), encode(env_id, 'hex'), revision, "
// One that is too large comes as nothing.
#define EJK_DOCUMENT "CASE WHEN octet_length(document) <= 16777216 THEN document END, "
#define EJK_CANDIDATES "CASE WHEN octet_length(candidates) <= 16777216 THEN candidates END"

std::string bytes(const std::string& hex_digits) { return "\\x" + hex_digits; }

std::string list_of(const std::vector<std::string>& ids) {
  std::string out = "{";
  for (const std::string& id : ids) out += (out.size() > 1 ? ",\"\\\\x" : "\"\\\\x") + id + "\"";
  return out + "}";
}

EntryId without_spec(EntryId id) {
  id.spec.clear();
  return id;
}

std::string environment_id_of(const Value& environment) {
  Entry entry;
  entry.environment = environment;
  return environment_id(entry);
}

// A column of text takes valid UTF-8 without NUL alone; anything else is written as JSON.
bool fits_column(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const base::CodePoint point = base::code_point_at(text, at);
    if (point.is_stray_byte() || point.code == 0) return false;
    at += point.bytes;
  }
  return true;
}
std::string column(const std::string& text) {
  return fits_column(text) ? text : stable_json(Value(text));
}

std::string text_of_column(const std::string& column) {
  if (!column.starts_with('"')) return column;
  try {
    return parse_json(column).as_string();
  } catch (const Error&) {
    return column;
  }
}

// Whatever the locale has between units and tenths.
std::string sql_number(double number) { return stable_json(Value(number)); }
double number_in(const std::string& text) {
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

const char* flag(bool value) { return value ? "t" : "f"; }

std::string sql_detail(Detail detail) {
  return detail == Detail::all ? EJK_IDS EJK_DOCUMENT EJK_CANDIDATES : EJK_IDS EJK_DOCUMENT "NULL";
}

// Some errors go away by themselves, or by what an administrator does: a database that is read-only
// (25), conflicts (40), no space (53), locks (55), cancelled queries (57), a failing disk (58).
bool may_pass(const Answer& answer) {
  constexpr std::array<std::string_view, 6> passing = {"25", "40", "53", "55", "57", "58"};
  return answer.trouble != Trouble::sql ||
         std::ranges::find(passing, answer.sqlstate.substr(0, 2)) != passing.end();
}

class HeldLease final : public TuningLease {
 public:
  HeldLease(std::shared_ptr<Link> link, std::string call, std::string token, double seconds,
            double patience)
      : link_(std::move(link)),
        release_{"SELECT ejk.release($1, $2)", {call, token}, patience},
        renewal_(link_->repeat(
            {"SELECT ejk.renew($1, $2, $3)", {call, token, sql_number(seconds)}, patience},
            seconds / 4)) {}
  ~HeldLease() override {
    link_->stop_repeating(renewal_);
    static_cast<void>(link_->ask(std::move(release_)));  // else it runs out
  }

 private:
  std::shared_ptr<Link> link_;
  Query release_;
  uint64_t renewal_;
};

}  // namespace

// As sql_detail has it.
struct PostgresStore::RowToRead {
  explicit RowToRead(const Row& row)
      : call(row.at(0).value_or("")),
        environment(row.at(1).value_or("")),
        revision(row.at(2).value_or("0")),
        document(row.at(3)),
        candidates(row.at(4)) {}
  const std::string call, environment, revision;
  const Field &document, &candidates;
};

PostgresStore::PostgresStore(const std::string& url, Options options)
    : options_(std::move(options)), warn_(options_.on_warning) {
  Link::Options link;
  link.connect_seconds = options_.connect_seconds;
  link.connect_again = options_.connect_again;
  link.idle_seconds = options_.idle_seconds;
  link.breaker = options_.breaker;
  link.on_warning = options_.on_warning;
  link.meanwhile = options_.meanwhile;
  link.on_return = options_.on_return;
  link.greeting = {
      "SELECT version, min_client, pg_has_role(current_user, 'ejk_writer', 'USAGE'), "
      "pg_has_role(current_user, 'ejk_admin', 'USAGE') FROM ejk.meta",
      {},
      options_.connect_seconds};
  link.greeted = [this](const Answer& answer) { return greeted(answer); };
  link_ = std::make_shared<Link>(postgres::read_address(url), std::move(link));
}

std::string PostgresStore::where() const { return link_->where(); }

const Value& PostgresStore::here(const EntryId& id, const Value* environment) const {
  if (environment != nullptr) return *environment;
  return options_.environment.is_null() ? environment_here(id) : options_.environment;
}

std::string PostgresStore::greeted(const Answer& answer) {
  if (answer.sqlstate == no_table || answer.sqlstate == "3F000")
    return "there is no store in this database; make one with ejk store init";
  if (answer.sqlstate == not_allowed)
    return "this role may not read it; grant it ejk_reader or ejk_writer";
  if (!answer) return answer.why;
  if (answer.rows.size() != 1) return "its table ejk.meta has no version; see ejk store check";
  const Row& row = answer.rows[0];
  const auto number = [&](size_t i) { return std::atoi(row.at(i).value_or("0").c_str()); };
  if (number(1) > postgres_schema)
    return "its schema is of version " + row[0].value_or("") +
           ", which this version cannot read; use a newer version of this library";
  const bool newer = number(0) > postgres_schema;
  if (newer)
    warn_("newer", "the store at " + where() + " has a schema of version " +
                       std::to_string(number(0)) +
                       ", newer than this version knows: it is read and not written");
  refuses_writes_ = newer || row.at(2) != "t";
  refuses_replacing_ = newer || row.at(3) != "t";
  return "";
}

// Troubles of the connection are said by the link.
void PostgresStore::report(const Answer& answer) {
  if (answer.trouble != Trouble::sql) return;
  if (answer.sqlstate == no_table || answer.sqlstate == no_function)
    return warn_("older", "the store at " + where() +
                              " has an older schema, without a place for recorded calls; its owner "
                              "brings it to this version's with ejk store upgrade");
  warn_(answer.sqlstate,
        "the store at " + where() + " says: " + answer.why +
            (answer.sqlstate == not_allowed
                 ? "; grant this role ejk_writer (or ejk_admin, to replace and erase)"
                 : ""));
}

// One question of many had no answer. The link says it of all.
void PostgresStore::report_unread(const Answer& answer) {
  report(answer);
  if (answer.trouble != Trouble::sql && !link_->is_away())
    warn_("unread", "not everything in the store at " + where() + " could be read: " + answer.why);
}

// ---- reading

std::optional<Entry> PostgresStore::read(const RowToRead& row, Detail detail) {
  const auto pass_over = [&](const std::string& why) {
    warn_("row " + row.call + row.environment, "passing over the row " + row.call + " " +
                                                   row.environment + " in " + where() + ": " + why);
    return std::nullopt;
  };
  if (!row.document) return pass_over("it is larger than 16 MiB");
  ReadEntry found = row.candidates ? read_entry(*row.document + *row.candidates, detail)
                                   : read_entry(*row.document, detail);
  if (!found.entry) return pass_over(found.why);
  if (call_id(found.entry->id) != row.call || environment_id(*found.entry) != row.environment)
    return pass_over("it is the entry of another call");
  if (!found.no_candidates.empty()) pass_over("its candidates: " + found.no_candidates);
  found.entry->trusted = false;  // any writer of the database may have written it
  return std::move(found.entry);
}

std::optional<Entry> PostgresStore::get(const EntryId& id, Detail detail,
                                        const Value* environment) {
  const std::string by_key = call_id(without_spec(id));
  const std::string own = bytes(environment_id_of(here(id, environment)));
  constexpr int max_bad_rows = 8;
  for (int skipped = 0; skipped < max_bad_rows; ++skipped) {
    Query query{"SELECT " + sql_detail(detail) + " FROM ejk.entries WHERE ", {}, {}};
    query.seconds = options_.get_seconds;
    if (id.spec.empty()) {
      query.sql += "device = $2 AND op = $3 AND key = $4 ORDER BY (call_id = $5::bytea) DESC, ";
      query.parameters = {own, column(id.device), column(id.op), column(id.key), bytes(by_key)};
    } else {
      query.sql += "call_id IN ($2::bytea, $3::bytea) ORDER BY (call_id = $2::bytea) DESC, ";
      query.parameters = {own, bytes(call_id(id)), bytes(by_key)};
    }
    query.sql += "call_id, " EJK_BEST_FIRST " LIMIT 1 OFFSET " + std::to_string(skipped);
    const Answer answer = link_->ask(std::move(query));
    report(answer);
    if (!answer || answer.rows.empty()) return std::nullopt;
    auto entry = read(RowToRead(answer.rows[0]), detail);
    if (entry && serves(*entry, id)) return entry;
  }
  return std::nullopt;
}

PostgresStore::Prefetched PostgresStore::prefetch(const std::string& device, const std::string& op,
                                                  const Value& environment) {
  constexpr size_t most = 5'000;
  Answer answer = link_->ask(
      {"SELECT " EJK_IDS "CASE WHEN sum(octet_length(document)) OVER (ORDER BY call_id) <= 8388608 "
       "THEN document END, NULL FROM (SELECT DISTINCT ON (call_id) * FROM ejk.entries "
       "WHERE device = $2 AND op = $3 ORDER BY call_id, " EJK_BEST_FIRST
       ") best ORDER BY call_id LIMIT " +
           std::to_string(most + 1),
       {bytes(environment_id_of(environment)), column(device), column(op)},
       options_.prefetch_seconds});
  report(answer);
  Prefetched out;
  out.answered = answer || answer.trouble == Trouble::sql;
  out.complete = answer && answer.rows.size() <= most;
  for (Row& row : answer.rows) {
    if (row.at(3)) out.rows.emplace(row.at(0).value_or(""), std::move(row));
    else out.complete = false;
  }
  return out;
}

std::optional<Entry> PostgresStore::find(const Prefetched& among, const EntryId& id) {
  for (const EntryId& of : {id, without_spec(id)}) {
    const auto row = among.rows.find(call_id(of));
    if (row == among.rows.end()) continue;
    auto entry = read(RowToRead(row->second), Detail::choice);
    if (entry && serves(*entry, id)) return entry;
  }
  return std::nullopt;
}

void PostgresStore::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                             Detail detail) {
  static_cast<void>(read_all(op, visit, detail));
}

bool PostgresStore::for_each_device(const std::string& table, const Wanted& wanted, double seconds,
                                    const std::function<bool(const Field& device)>& read) {
  if (!wanted) return read(std::nullopt);
  // One step in the index for each, where DISTINCT would read all of it.
  const auto next = [&](const std::string& where) {
    return "SELECT device FROM " + table + where + " ORDER BY device LIMIT 1";
  };
  const Answer answer = link_->ask({"WITH RECURSIVE d AS ((" + next("") + ") UNION ALL SELECT (" +
                                        next(" e WHERE e.device > d.device") +
                                        ") FROM d WHERE device IS NOT NULL) "
                                        "SELECT device FROM d WHERE device IS NOT NULL",
                                    {},
                                    seconds});
  if (!answer) return report_unread(answer), false;
  for (const Row& row : answer.rows)
    if (wanted(text_of_column(row.at(0).value_or(""))) && !read(row.at(0))) return false;
  return true;
}

bool PostgresStore::read_all(std::string_view op, const std::function<bool(const Entry&)>& visit,
                             Detail detail, const Wanted& wanted) {
  bool more = true;
  const bool all =
      for_each_device("ejk.entries", wanted, options_.prefetch_seconds, [&](const Field& device) {
        return !more || read_all_of(
                            device, op, [&](const Entry& e) { return more = visit(e); }, detail);
      });
  return all;
}

// By pages: nothing is held between them, and a visit may change the store. Those of a device in
// the order of the index that begins with it.
bool PostgresStore::read_all_of(const Field& device, std::string_view op,
                                const std::function<bool(const Entry&)>& visit, Detail detail) {
  const std::string order = device ? "op, key, call_id, env_id" : "call_id, env_id";
  const std::string behind =
      device ? "device = $4 AND (op, key, call_id, env_id) > ($5, $6, $1::bytea, $2::bytea)"
             : "(call_id, env_id) > ($1::bytea, $2::bytea)";
  const std::string size = detail == Detail::all
                               ? "octet_length(document) + coalesce(octet_length(candidates), 0)"
                               : "octet_length(document)";
  const std::string page =
      "SELECT " + sql_detail(detail) + ", op, key FROM (SELECT *, row_number() OVER w AS n, sum(" +
      size + ") OVER w AS bytes FROM (SELECT * FROM ejk.entries WHERE " + behind +
      " AND ($3 = '' OR op = $3) ORDER BY " + order + " LIMIT 500) page WINDOW w AS (ORDER BY " +
      order + ")) sized WHERE n = 1 OR bytes <= 8388608 ORDER BY " + order;
  std::vector<Field> last = {bytes(""), bytes(""), column(std::string(op))};
  if (device) last.insert(last.end(), {device, "", ""});
  for (;;) {
    const Answer answer = link_->ask({page, last, options_.prefetch_seconds});
    if (!answer) return report_unread(answer), false;
    if (answer.rows.empty()) return true;
    for (const Row& row : answer.rows) {
      const RowToRead next(row);
      last[0] = bytes(next.call), last[1] = bytes(next.environment);
      if (device) last[4] = row.at(5), last[5] = row.at(6);
      const auto entry = read(next, detail);
      if (entry && (op.empty() || entry->id.op == op) && !visit(*entry)) return true;
    }
  }
}

// ---- writing

bool PostgresStore::put(const Entry& entry, IfPresent if_present) {
  return send(entry, if_present) == Sent::kept;
}

PostgresStore::Sent PostgresStore::send(const Entry& given, IfPresent if_present) {
  Entry entry = given;
  entry.trusted = false;  // here as everywhere: none is, so none is better for it
  if (const auto text = entry_text(entry); !text) {
    warn_("unreadable",
          "[" + entry.id.op + "] not sending an entry that could not be read back: " + text.why());
    return Sent::never;
  }
  const std::string call = call_id(entry.id), own = environment_id(entry);
  const auto failed = [&](const Answer& answer) {
    report(answer);
    return may_pass(answer) ? Sent::later : Sent::never;
  };
  constexpr int attempts = 50;  // others may write the same row meanwhile
  for (int i = 0; i < attempts; ++i) {
    const Answer present =
        link_->ask({"SELECT " + sql_detail(Detail::all) +
                        " FROM ejk.entries WHERE call_id = $1::bytea AND "
                        "(env_id = $2::bytea OR $3::bool)",
                    {bytes(call), bytes(own), flag(if_present == IfPresent::replace)},
                    options_.put_seconds});
    if (!present) return failed(present);
    if (refuses_writes_) return Sent::never;
    Entry out = entry;
    std::string revision = "0";
    std::vector<std::string> in_the_way;
    for (const Row& fields : present.rows) {
      const RowToRead row(fields);
      const auto there = read(row, Detail::all);
      if (row.environment == own) {
        revision = row.revision;
        if (!there) continue;
        auto now = kept(entry, *there, if_present);
        if (!now && if_present == IfPresent::keep_better) return Sent::kept;
        if (now) out = std::move(*now);
      } else if (there && stands_in_the_way(*there, entry)) {
        in_the_way.push_back(row.environment);
      }
    }
    const auto whole = entry_text(out);
    if (!whole) return Sent::never;  // with the unknown members of both it is too large
    const std::string& text = *whole;
    const size_t choice = text.find(end_of_document) + end_of_document.size();
    const Field candidates = choice == text.size() ? Field() : text.substr(choice);
    const Evidence& evidence = out.evidence;
    const Answer answer = link_->ask(
        {"SELECT ejk.put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, "
         "$17)",
         {bytes(call), bytes(own), column(out.id.device), column(out.id.op), column(out.id.key),
          flag(is_measured(out)), flag(out.outcome != Outcome::failed), flag(evidence.complete),
          std::to_string(evidence.samples), fits_column(evidence.time) ? evidence.time : "",
          std::to_string(out.candidates.size()), bytes(content_digest(out)), text.substr(0, choice),
          candidates, revision, flag(if_present == IfPresent::replace), list_of(in_the_way)},
         options_.put_seconds});
    if (!answer) return failed(answer);
    if (answer.rows.at(0).at(0) != "changed") return Sent::kept;
  }
  return Sent::later;
}

bool PostgresStore::erase(const EntryId& id) {
  std::vector<std::string> calls = {call_id(id), call_id(without_spec(id))};
  const bool all = id.spec.empty();
  const auto given = [&](const std::string& text) { return all ? Field(column(text)) : Field(); };
  const Answer answer = link_->ask({"SELECT ejk.erase($1, $2, $3, $4)",
                                    {list_of(calls), given(id.device), given(id.op), given(id.key)},
                                    options_.put_seconds});
  report(answer);
  if (!answer && answer.trouble != Trouble::sql)
    warn_("erase", "nothing was erased in the store at " + where() + ": " + answer.why +
                       "; erase it again when the database answers, or its entries come back");
  return answer && answer.rows.at(0).at(0) != "0";
}

// ---- recorded calls

PostgresStore::Sent PostgresStore::count_calls(const std::string& source,
                                               const std::vector<CallCount>& calls) {
  if (calls.empty()) return Sent::kept;
  std::vector<Field> ids, devices, ops, keys, records, counts, timed, seconds, first, last;
  for (const CallCount& call : calls) {
    ids.push_back(bytes(call.call));
    devices.push_back(column(call.id.device));
    ops.push_back(column(call.id.op));
    keys.push_back(column(call.id.key));
    records.push_back(call.record);
    counts.push_back(std::to_string(call.calls));
    timed.push_back(std::to_string(call.timed_calls));
    seconds.push_back(sql_number(call.timed_seconds));
    first.push_back(column(call.first));
    last.push_back(column(call.last));
  }
  const Answer answer =
      link_->ask({"SELECT ejk.count_calls($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                  {bytes(source), array_of(ids), array_of(devices), array_of(ops), array_of(keys),
                   array_of(records), array_of(counts), array_of(timed), array_of(seconds),
                   array_of(first), array_of(last)},
                  options_.put_seconds});
  report(answer);
  return answer ? Sent::kept : may_pass(answer) ? Sent::later : Sent::never;
}

bool PostgresStore::for_each_call(const std::function<void(CallCount)>& visit,
                                  double seconds_per_question, const Wanted& wanted) {
  return for_each_device("ejk.calls", wanted, seconds_per_question, [&](const Field& device) {
    return for_each_call_of(device, visit, seconds_per_question);
  });
}

bool PostgresStore::for_each_call_of(const Field& device,
                                     const std::function<void(CallCount)>& visit,
                                     double seconds_per_question) {
  const std::string page =
      std::string(
          "SELECT encode(call_id, 'hex'), device, op, key, record, calls, timed_calls, "
          "timed_seconds, first, last FROM (SELECT *, row_number() OVER w AS n, "
          "sum(octet_length(record)) OVER w AS bytes FROM (SELECT * FROM ejk.calls "
          "WHERE call_id > $1::bytea ") +
      (device ? "AND device = $3 " : "") +
      "ORDER BY call_id LIMIT 1000) page "
      "WINDOW w AS (ORDER BY call_id)) sized CROSS JOIN LATERAL (SELECT "
      "coalesce(sum(calls), 0) AS calls, coalesce(sum(timed_calls), 0) AS timed_calls, "
      "coalesce(sum(least(timed_seconds, $2::float8)), 0) AS timed_seconds, "
      "coalesce(min(first), '') AS first, "
      "coalesce(max(last), '') AS last FROM ejk.call_counts c "
      "WHERE c.call_id = sized.call_id) counted "
      "WHERE n = 1 OR bytes <= 8388608 ORDER BY call_id";
  std::vector<Field> last = {bytes(""), sql_number(max_timed_seconds)};
  if (device) last.push_back(device);
  for (;;) {
    const Answer answer = link_->ask({page, last, seconds_per_question});
    if (!answer) return report_unread(answer), false;
    if (answer.rows.empty()) return true;
    for (const Row& row : answer.rows) {
      const auto text = [&](size_t i) { return row.at(i).value_or(""); };
      const auto number = [&](size_t i) { return std::strtoull(text(i).c_str(), nullptr, 10); };
      last[0] = bytes(text(0));
      visit({text(0),
             {text(1), text(2), text(3), ""},
             text(4),
             number(5),
             number(6),
             number_in(text(7)),
             text(8),
             text(9)});
    }
  }
}

// ---- leases

std::unique_ptr<TuningLease> PostgresStore::lease(const EntryId& id, double patience_seconds) {
  return try_lease(id, patience_seconds).lease;
}

PostgresStore::Leased PostgresStore::try_lease(const EntryId& id, double patience_seconds) {
  const std::string call = bytes(call_id(id));
  const std::string token = base::random_digits();
  const double seconds = options_.lease_seconds;
  const auto until = base::Clock::now() + base::duration_of(patience_seconds);
  for (double pause = 0.05;; pause = std::min(1.5 * pause, 1.)) {
    const Answer answer = link_->ask(
        {"SELECT ejk.lease($1, $2, $3)", {call, token, sql_number(seconds)}, options_.get_seconds});
    if (!answer) return report(answer), Leased{nullptr, true};
    if (answer.rows.at(0).at(0) == "t")
      return {std::make_unique<HeldLease>(link_, call, token, seconds, options_.get_seconds)};
    const auto left = until - base::Clock::now();
    if (left <= left.zero()) return {};
    const auto rest = base::duration_of(pause * (0.5 + postgres::random_number()));
    std::this_thread::sleep_for(std::min(left, rest));
  }
}

std::string postgres_schema_script(int from) {
  std::string out;
  if (from < 1) out += ejk_kernels::schema_sql;
  if (from < 2) out += ejk_kernels::schema_2_sql;
  if (from < 3) out += ejk_kernels::schema_3_sql;
  return out;
}

}  // namespace ejk::detail
