// SPDX-License-Identifier: Apache-2.0
// ejk quarantine: configs that crashed reproducibly and are not run again.
#include <ejk/quarantine.h>

#include "store/op_name.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct QuarantineOptions {
  std::string store;
  std::string op;
  bool all = false;
};

int quarantine_ls_verb(const QuarantineOptions& options, Output& out) {
  using enum Table::Align;
  Problems problems;
  Table table({{"OP"}, {"KEY"}, {"CONFIG"}, {"WHY"}, {"SINCE"}, {"DEVICE"}});
  Value list = Value::array();
  const std::vector<std::string> ops =
      options.op.empty() ? std::vector<std::string>{} : std::vector{options.op};
  for (const std::string& path : store_paths(options.store))
    for (const QuarantineRecord& r : quarantine_list(path, problems.sink())) {
      if (!detail::op_matches(r.id.op, ops)) continue;
      table.add({r.id.op, r.id.key, config_text(r.config), r.why, r.time, r.id.device});
      list.push_back(Value::object({{"op", r.id.op},
                                    {"key", r.id.key},
                                    {"call", call_text(r.id.spec)},
                                    {"device", r.id.device},
                                    {"environment", r.environment},
                                    {"config", r.config},
                                    {"why", r.why},
                                    {"time", r.time},
                                    {"where", path}}));
    }
  Table suspects({{"SUSPECT"}, {"ENDED", right}, {"CONFIG"}, {"DEVICE"}});
  Value suspected = Value::array();
  for (const std::string& path : store_paths(options.store))
    for (const SuspectRecord& r : suspect_list(path, problems.sink())) {
      if (!detail::op_matches(r.op, ops)) continue;
      suspects.add({r.op, count_text(static_cast<size_t>(r.times), "process", "processes"),
                    config_text(r.config), r.device});
      suspected.push_back(Value::object({{"op", r.op},
                                         {"device", r.device},
                                         {"config", r.config},
                                         {"times", r.times},
                                         {"where", path}}));
    }
  if (table.empty()) out.line("nothing is quarantined");
  else out.table(table);
  if (!suspects.empty()) {
    out.line();
    out.table(suspects);
    out.line("suspects were running when processes ended; they are tried again with care");
  }
  out.document(Value::object({{"quarantined", std::move(list)},
                              {"suspects", std::move(suspected)},
                              {"problems", problems.to_value()}}));
  return exit_ok;
}

int quarantine_clear_verb(const QuarantineOptions& options, Output& out) {
  if (options.op.empty() != options.all)
    throw Failure(exit_usage, "quarantine clear needs an op, or --all");
  const std::string path = store_paths(options.store).front();
  const size_t cleared = quarantine_clear(path, options.op);
  if (cleared == 0)
    out.line("nothing " + (options.all ? "" : "of " + options.op + " ") + "is quarantined in " +
             path);
  else
    out.line(count_text(cleared, "config", "configs") +
             " cleared; the next tuning tries them again");
  out.document(Value::object({{"cleared", cleared}, {"where", path}}));
  return cleared == 0 && !options.op.empty() ? exit_nothing : exit_ok;
}

}  // namespace

void add_quarantine(Verbs& verbs) {
  Verbs quarantine = verbs.group("quarantine", "List or clear configs that crashed repeatedly");
  quarantine.add<QuarantineOptions>({"ls", "List the configs in quarantine", "ejk quarantine ls"},
                                    quarantine_ls_verb,
                                    [](const VerbLine& line, QuarantineOptions& to) {
                                      line.value("op", to.op, "OP", "Only this op").names_op();
                                      line.directory(to.store);
                                    });
  quarantine.add<QuarantineOptions>(
      {"clear", "Allow configs to be tried again", "ejk quarantine clear matmul"},
      quarantine_clear_verb, [](const VerbLine& line, QuarantineOptions& to) {
        line.value("op", to.op, "OP", "Only this op").names_op();
        line.flag("--all", to.all, "All ops");
        line.directory(to.store);
      });
}

}  // namespace ejk::cli
