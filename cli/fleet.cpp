// SPDX-License-Identifier: Apache-2.0
// ejk fleet: how far many processes are with the recorded calls.
#include <algorithm>
#include <ctime>
#include <map>
#include <optional>

#include <fmt/format.h>

#include <ejk/names.h>

#include "base/directory.h"
#include "calls.h"
#include "offline/stored_call.h"
#include "store/keep.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct FleetOptions {
  Filter filter;
  KernelOptions kernels;
};

using enum Table::Align;

// A call that a process tunes at the moment.
struct Lease {
  std::string holder;
  std::string since;  // UTC, ISO 8601
};
using Leases = std::map<std::string, Lease>;  // by call_id

Leases leases_of(detail::PostgresStore& database) {
  const auto answer = database.ask(
      {"SELECT encode(call_id, 'hex'), holder, "
       "to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM ejk.leases "
       "WHERE expires >= clock_timestamp()",
       {},
       60});
  if (!answer)
    throw Failure(exit_failed, database.where() + " cannot be read: " + answer.why +
                                   " (ejk store check says more)");
  Leases out;
  for (const auto& row : answer.rows)
    out[row.at(0).value_or("")] = {"role " + row.at(1).value_or(""), row.at(2).value_or("")};
  return out;
}

Leases leases_of(const std::string& directory) {
  constexpr std::string_view suffix = ".lock";
  const auto folder =
      base::Directory::at(directory, base::Absent::fails, base::trust_from_environment())
          .below("leases");
  if (folder.error() && !folder.error().is_absent())
    throw Failure(exit_failed, "leases cannot be read: " + folder.error().text());
  Leases out;
  for (const std::string& name : folder.names()) {
    if (!name.ends_with(suffix)) continue;
    if (const auto holder = base::FileLock::holder_of(folder, name))
      out[name.substr(0, name.size() - suffix.size())] = {
          "process " + holder->process + " on " + holder->host, holder->since};
  }
  return out;
}

// Since 1970; nullopt if it is not a time.
std::optional<double> seconds_of(const std::string& utc) {
  tm parts{};
  const char* const end = strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return static_cast<double>(timegm(&parts));
}

// Times of tunings, and how fast they follow each other.
class Rate {
 public:
  explicit Rate(double now) : now_(now) {}
  void add(const std::string& utc) {
    const auto time = seconds_of(utc);
    if (!time || *time < now_ - recent || *time > now_) return;
    first_ = std::min(first_, *time);
    ++count_;
  }
  // Calls per second; nullopt if too few were tuned in the last minutes to tell.
  std::optional<double> per_second() const {
    if (count_ < 2 || now_ <= first_) return std::nullopt;
    return (count_ - 1) / (now_ - first_);
  }

 private:
  static constexpr double recent = 600;  // seconds
  double now_, first_ = now_;
  int count_ = 0;
};

// Of one device.
struct Status {
  explicit Status(double now) : rate(now) {}
  size_t recorded = 0, tuned = 0, cut_short = 0, failed = 0, leased = 0;
  Rate rate;
  size_t left() const { return recorded - tuned - cut_short - failed; }
  std::optional<double> seconds_left() const {
    const auto speed = rate.per_second();
    return speed ? std::optional(static_cast<double>(left()) / *speed) : std::nullopt;
  }
  void count(const std::optional<StoredCall>& stored) {
    ++recorded;
    if (!stored || stored->for_any_outputs) return;
    if (stored->entry.outcome == Outcome::failed) ++failed;
    else if (stored->is_tuned()) ++tuned;
    else ++cut_short;
    if (is_measured(stored->entry)) rate.add(stored->entry.evidence.time);
  }
};

std::string duration_text(double seconds) {
  const auto minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 1) return fmt::format("{:.0f} s", seconds);
  if (minutes < 60) return fmt::format("{} min", minutes);
  return minutes < 48 * 60 ? fmt::format("{} h {} min", minutes / 60, minutes % 60)
                           : fmt::format("{} d {} h", minutes / 1440, minutes / 60 % 24);
}

Value or_null(const std::optional<double>& number) { return number ? Value(*number) : Value(); }

// What is tuned at the moment, as table and as list.
class HeldCalls {
 public:
  explicit HeldCalls(double now) : now_(now) {}
  void add(const EntryId& id, const Lease& lease) {
    const auto& [holder, since] = lease;
    const auto begun = seconds_of(since);
    table_.add({id.op, id.key, holder, begun ? duration_text(std::max(0., now_ - *begun)) : "-",
                id.device});
    list_.push_back(Value::object({{"device", id.device},
                                   {"op", id.op},
                                   {"key", id.key},
                                   {"holder", holder},
                                   {"since", since}}));
  }
  Value show(Output& out) {
    if (!table_.empty()) {
      out.line();
      out.table(table_);
    }
    return std::move(list_);
  }

 private:
  const double now_;
  Table table_{{{"OP"}, {"KEY"}, {"TUNED BY"}, {"FOR", right}, {"DEVICE"}}};
  Value list_ = Value::array();
};

Value show_devices(const std::map<std::string, Status>& devices, Output& out) {
  Table table({{"DEVICE"},
               {"RECORDED", right},
               {"TUNED", right},
               {"CUT SHORT", right},
               {"FAILED", right},
               {"LEASED", right},
               {"LEFT", right},
               {"PER HOUR", right},
               {"TIME LEFT", right}});
  Value list = Value::array();
  for (const auto& [device, s] : devices) {
    const auto speed = s.rate.per_second();
    const auto per_hour = speed ? std::optional(3600 * *speed) : std::nullopt;
    table.add({device, std::to_string(s.recorded), std::to_string(s.tuned),
               std::to_string(s.cut_short), std::to_string(s.failed), std::to_string(s.leased),
               std::to_string(s.left()), per_hour ? fmt::format("{:.0f}", *per_hour) : "-",
               s.seconds_left() ? duration_text(*s.seconds_left()) : "-"});
    list.push_back(Value::object({{"device", device},
                                  {"recorded", s.recorded},
                                  {"tuned", s.tuned},
                                  {"cut_short", s.cut_short},
                                  {"failed", s.failed},
                                  {"leased", s.leased},
                                  {"left", s.left()},
                                  {"per_hour", or_null(per_hour)},
                                  {"seconds_left", or_null(s.seconds_left())}}));
  }
  out.table(table);
  return list;
}

int fleet_status_verb(const FleetOptions& options, Output& out) {
  Problems problems;
  const auto store = open_layers(options.kernels.store, true, problems);
  detail::SharedStore* const shared = detail::database_of(*store);
  const std::string where = shared ? shared->far().where() : store->layers().front()->where();
  const Leases leases = shared ? leases_of(shared->far()) : leases_of(where);
  const auto calls = recorded_calls(options.kernels, *store, options.filter, problems);
  if (calls.empty())
    throw Failure(exit_nothing,
                  "no matching calls are recorded in " + where_to_record(options.kernels));
  const auto choices = choices_of(*store, devices_of(calls));
  const double now = static_cast<double>(time(nullptr));
  std::map<std::string, Status> devices;
  HeldCalls held(now);
  for (const RecordedCall& call : calls) {
    Status& status = devices.try_emplace(call.id.device, now).first->second;
    status.count(stored_for(*choices, call));
    const auto lease = leases.find(detail::call_id(call.id));
    if (lease == leases.end()) continue;
    ++status.leased;
    held.add(call.id, lease->second);
  }
  Value list = show_devices(devices, out), held_list = held.show(out);
  out.document(Value::object({{"store", where},
                              {"devices", std::move(list)},
                              {"leases", std::move(held_list)},
                              {"problems", problems.to_value()}}));
  // What could not be read is missing in the numbers.
  return problems.list().empty() ? exit_ok : exit_failed;
}

}  // namespace

void add_fleet(Verbs& verbs) {
  verbs.group("fleet", "Tune with many processes")
      .add<FleetOptions>(
          {"status", "Show how far the recorded calls of each device are tuned, and by whom",
           "ejk fleet status --store postgresql://db.example/tuned"},
          fleet_status_verb, [](const VerbLine& line, FleetOptions& to) {
            line.store(to.kernels.store);
            line.recorded_in(to.kernels);
            line.filter(to.filter);
          });
}

}  // namespace ejk::cli
