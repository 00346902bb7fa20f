// SPDX-License-Identifier: Apache-2.0
// Notes of drift as files; docs/reference/store_format.md specifies them.
#include "store/drift_notes.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <ejk/error.h>

#include "base/directory.h"
#include "base/or_why.h"
#include "base/sha256.h"
#include "base/warn.h"
#include "store/crash_journal.h"

namespace ejk::detail {
namespace {

using base::Absent;
using base::Directory;

constexpr int drift_schema = 1;
constexpr size_t drift_limit = size_t{1} << 20;
constexpr const char* drift_folder = "drift";

std::string drift_file_of(const EntryId& id, const Value& environment) {
  const Value whole = Value(Value::Array{id.device, id.op, id.key, id.spec, environment});
  return base::sha256_hex(stable_json(whole), 32) + ".json";
}

Value drift_document(const DriftNote& note) {
  return Value::object({{"schema", drift_schema},
                        {"op", note.id.op},
                        {"key", note.id.key},
                        {"spec", note.id.spec},
                        {"device", note.id.device},
                        {"environment", note.environment},
                        {"config", note.config},
                        {"tuned", note.tuned},
                        {"evidence_seconds", note.evidence_seconds},
                        {"now_seconds", note.now_seconds},
                        {"time", note.time}});
}

// Throws Error(parse) for what is not a note of a known schema.
DriftNote drift_from(const Value& document) {
  const auto member = [&](std::string_view name) -> const Value& {
    if (const Value* found = document.find(name)) return *found;
    throw Error(ErrorKind::parse, "it has no \"" + std::string(name) + "\"");
  };
  if (member("schema").as_int() != drift_schema)
    throw Error(ErrorKind::parse, "its schema is not known");
  DriftNote note{{member("device").as_string(), member("op").as_string(), member("key").as_string(),
                  member("spec").as_string()},
                 member("environment"),
                 member("config"),
                 member("tuned").as_string(),
                 member("evidence_seconds").as_double(),
                 member("now_seconds").as_double(),
                 member("time").as_string()};
  if (!std::isnormal(note.evidence_seconds) || !std::isnormal(note.now_seconds))
    throw Error(ErrorKind::parse, "its seconds are not times");
  return note;
}

// Nothing if the file is not the note that its name says.
base::OrWhy<DriftNote> read_drift_note(const Directory& in, const std::string& name) {
  const auto [text, error, strange] = in.read(name, drift_limit);
  if (error) return base::Why{error.text()};
  try {
    DriftNote note = drift_from(parse_json(text));
    if (name == drift_file_of(note.id, note.environment)) return note;
    return base::Why{"its name is that of another note"};
  } catch (const Error& problem) {
    return base::Why{problem.what()};
  }
}

}  // namespace

bool is_same_evidence(const DriftNote& a, const DriftNote& b) {
  return a.tuned == b.tuned && a.evidence_seconds == b.evidence_seconds;
}

bool is_about(const DriftNote& note, const Entry& entry) {
  return entry.environment == note.environment && entry.evidence.time == note.tuned &&
         entry.evidence.seconds == note.evidence_seconds;
}

base::FileError put_drift_note(const std::string& store_path, const DriftNote& note) {
  const std::string text = to_json(drift_document(note), 1) + "\n";
  return folder_in(store_path, drift_folder, Absent::made)
      .replace(drift_file_of(note.id, note.environment), text,
               folder_in(store_path, "tmp", Absent::made), base::Written::unflushed);
}

std::optional<DriftNote> find_drift_note(const std::string& store_path, const EntryId& id,
                                         const Value& environment) {
  return read_drift_note(folder_in(store_path, drift_folder), drift_file_of(id, environment))
      .value();
}

std::vector<DriftNote> drift_notes(const std::string& store_path, const WarningSink& warn) {
  base::OnceWarnings once(warn);
  std::vector<DriftNote> notes;
  const Directory folder = folder_in(store_path, drift_folder);
  for (const std::string& name : folder.names()) {
    if (auto note = read_drift_note(folder, name)) notes.push_back(std::move(*note));
    else
      once(folder.path(), "passing over " + folder.path_of(name) +
                              ", which is not a note of drift: " + note.why());
  }
  std::ranges::stable_sort(notes, {}, [](const DriftNote& n) { return std::tie(n.id.op, n.time); });
  return notes;
}

}  // namespace ejk::detail
