// SPDX-License-Identifier: Apache-2.0
// ejk labels: which labelled calls lowered computations hold, and what is stored for them.
#include <map>

#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/labels.h>

#include "verbs.h"

namespace ejk::cli {
namespace {

struct LabelsOptions {
  std::string store;
  std::vector<std::string> files;
  std::vector<std::string> prefixes;
};

int labels_verb(const LabelsOptions& options, Output& out) {
  using enum Table::Align;
  Problems problems;
  const auto store = existing_layers(options.store, problems);
  Value files = Value::array();
  size_t total = 0;
  for (const std::string& file : options.files) {
    FoundLabels found;
    try {
      const StillWorking working("reading " + file);
      found = find_labels_in(file, {.prefixes = options.prefixes});
    } catch (const Error& error) {
      throw Failure(exit_nothing, error.what());
    }
    Table table({{"OP"}, {"KEY"}, {"COUNT", right}, {"STORED"}});
    Value labels = Value::array();
    for (const Label& label : found.labels) {
      std::string stored = "no key";
      Value config;
      if (!label.truncated) {
        const auto entry =
            store->get({cpu_device().fingerprint, label.op, label.key, ""}, Detail::choice);
        stored = entry ? std::string(outcome_name(entry->entry.outcome)) : "nothing";
        if (entry) config = entry->entry.config;
      }
      table.add({label.op, label.truncated ? "(cut off)" : label.key, std::to_string(label.count),
                 stored + (config.is_null() ? "" : ": " + config_text(config))});
      labels.push_back(Value::object({{"label", label.text},
                                      {"prefix", label.prefix},
                                      {"op", label.op},
                                      {"key", label.key},
                                      {"count", label.count},
                                      {"truncated", label.truncated},
                                      {"stored", stored},
                                      {"config", config}}));
    }
    total += found.labels.size();
    out.line(file + ": " + found.format + ", " +
             count_text(found.labels.size(), "label", "labels"));
    if (!table.empty()) out.table(table);
    Value notes = Value::array();
    for (const std::string& note : found.notes) {
      out.line("note: " + note);
      notes.push_back(note);
    }
    files.push_back(Value::object({{"file", file},
                                   {"format", found.format},
                                   {"labels", std::move(labels)},
                                   {"notes", std::move(notes)}}));
  }
  if (total == 0)
    say("no label was found: the calls were not labelled, or the form of the file does not keep "
        "labels");
  out.document(Value::object({{"files", std::move(files)}, {"problems", problems.to_value()}}));
  return total == 0 ? exit_nothing : exit_ok;
}

}  // namespace

void add_labels(Verbs& verbs) {
  verbs.add<LabelsOptions>(
      {"labels", "List the labelled calls in lowered computations", "ejk labels lowered.mlir"},
      labels_verb, [](const VerbLine& line, LabelsOptions& to) {
        line.values("files", to.files, "FILE",
                    "StableHLO, HLO text or proto files, or folders of --xla_dump_to")
            .required();
        line.store(to.store);
        line.prefixes(to.prefixes);
      });
}

}  // namespace ejk::cli
