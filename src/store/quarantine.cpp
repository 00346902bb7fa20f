// SPDX-License-Identifier: Apache-2.0
// Quarantine records as files; docs/reference/store_format.md specifies them.
#include "store/quarantine.h"

#include <time.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include <ejk/error.h>

#include "base/directory.h"
#include "base/or_why.h"
#include "base/sha256.h"
#include "base/warn.h"
#include "store/crash_journal.h"
#include "store/op_name.h"

namespace ejk {
namespace {

using base::Absent;
using base::Directory;

constexpr int record_schema = 1;
constexpr size_t record_limit = size_t{1} << 20;
constexpr std::string_view record_suffix = ".json";

Directory folder_of(const std::string& store_path, Absent absent = Absent::fails) {
  return detail::folder_in(store_path, "quarantine", absent);
}

std::string name_of(const QuarantineRecord& r) {
  const Value whole =
      Value(Value::Array{r.id.device, r.id.op, r.id.key, r.id.spec, r.environment, r.config});
  return base::sha256_hex(stable_json(whole), 32).append(record_suffix);
}

Value record_document(const QuarantineRecord& r) {
  return Value::object({{"schema", record_schema},
                        {"op", r.id.op},
                        {"key", r.id.key},
                        {"spec", r.id.spec},
                        {"device", r.id.device},
                        {"environment", r.environment},
                        {"config", r.config},
                        {"why", r.why},
                        {"time", r.time}});
}

// Throws Error(parse) for what is not a record of a known schema.
QuarantineRecord record_from(const Value& document) {
  const auto member = [&](std::string_view name) -> const Value& {
    if (const Value* found = document.find(name)) return *found;
    throw Error(ErrorKind::parse, "it has no \"" + std::string(name) + "\"");
  };
  if (member("schema").as_int() != record_schema)
    throw Error(ErrorKind::parse, "its schema is not known");
  return {{member("device").as_string(), member("op").as_string(), member("key").as_string(),
           member("spec").as_string()},
          member("config"),
          member("environment"),
          member("why").as_string(),
          member("time").as_string()};
}

// Nothing if the file is not the record that its name says.
base::OrWhy<QuarantineRecord> read_record(const Directory& in, const std::string& name) {
  const auto [text, error, strange] = in.read(name, record_limit);
  if (error) return base::Why{error.text()};
  try {
    QuarantineRecord record = record_from(parse_json(text));
    if (name == name_of(record)) return record;
    return base::Why{"its name is that of another record"};
  } catch (const Error& problem) {
    return base::Why{problem.what()};
  }
}

bool is_of(std::string_view own, std::string_view op) {
  return op.empty() || detail::op_matches(own, op);
}

}  // namespace

namespace detail {

base::FileError quarantine_put(const std::string& store_path, const QuarantineRecord& record) {
  const std::string text = to_json(record_document(record), 1) + "\n";
  return folder_of(store_path, Absent::made)
      .replace(name_of(record), text, folder_in(store_path, "tmp", Absent::made));
}

std::optional<std::string> quarantine_reason(const std::string& store_path,
                                             const QuarantineRecord& record) {
  const auto found = read_record(folder_of(store_path), name_of(record));
  return found ? std::optional(found->why) : std::nullopt;
}

}  // namespace detail

std::vector<QuarantineRecord> quarantine_list(const std::string& store_path, WarningSink warn) {
  base::OnceWarnings once(warn ? std::move(warn) : stderr_warnings());
  std::vector<QuarantineRecord> records;
  const Directory folder = folder_of(store_path);
  for (const std::string& name : folder.names()) {
    if (auto record = read_record(folder, name)) records.push_back(std::move(*record));
    else
      once(folder.path(), "passing over " + folder.path_of(name) +
                              ", which is not a quarantine record: " + record.why());
  }
  std::ranges::stable_sort(records, {},
                           [](const QuarantineRecord& r) { return std::tie(r.id.op, r.time); });
  return records;
}

std::vector<SuspectRecord> suspect_list(const std::string& store_path, WarningSink warn) {
  std::vector<SuspectRecord> out;
  for (const auto& file : detail::suspects_files(store_path, base::warnings_to(std::move(warn))))
    for (const auto& [config, times] : file.suspects)
      out.push_back({file.device, file.op, parse_json(config), times});
  std::ranges::stable_sort(out, {}, &SuspectRecord::op);
  return out;
}

size_t quarantine_clear(const std::string& store_path, std::string_view op) {
  size_t cleared = 0;
  for (const QuarantineRecord& record : quarantine_list(store_path))
    if (is_of(record.id.op, op) && !folder_of(store_path).remove(name_of(record))) ++cleared;
  const auto all = detail::suspects_files(store_path, stderr_warnings());
  if (std::ranges::none_of(all, [&](const auto& file) { return is_of(file.op, op); }))
    return cleared;
  const auto lock = detail::lock_suspects(store_path);
  if (lock == nullptr) return cleared;
  for (const detail::SuspectsFile& file : detail::suspects_files(store_path, stderr_warnings()))
    if (is_of(file.op, op) && !detail::folder_in(store_path, "journal").remove(file.name))
      cleared += file.suspects.size();
  return cleared;
}

}  // namespace ejk
