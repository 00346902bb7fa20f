// SPDX-License-Identifier: Apache-2.0
#include "record/reading.h"

#include <utility>

#include <ejk/error.h>

#include "base/directory.h"
#include "base/warn.h"
#include "record/folder.h"
#include "store/keep.h"
#include "store/postgres/address.h"
#include "store/shared.h"

namespace ejk {
namespace detail {
namespace {

void add(RecordedCall call, RecordedCalls& to) {
  const EntryId id = call.id;
  to[id.device][id.op].insert_or_assign(id.key, std::move(call));
}

using Wanted = PostgresStore::Wanted;

RecordedCalls read_folder(const std::string& folder, const WarningSink& warn,
                          const Wanted& wanted) {
  RecordedCalls out;
  const auto top = base::Directory::at(folder, base::Absent::fails, base::trust_from_environment());
  for_each_record_file(top, [&](const base::Directory& in, const std::string& name) {
    LoadedRecord loaded = load_record(in, name);
    const std::string path = in.path_of(name);
    if (loaded.call &&
        top.path_of(record_folder(loaded.call->id) + "/" + record_name(loaded.call->id)) == path)
      add(std::move(*loaded.call), out);
    else if (loaded.call) warn("passing over " + path + ": it is the record of another call");
    else if (!loaded.absent) warn("passing over " + path + ": " + loaded.why);
  });
  if (wanted) std::erase_if(out, [&](const auto& device) { return !wanted(device.first); });
  return out;
}

// Throws Error.
RecordedCall call_in(const PostgresStore::CallCount& count) {
  Value document = parse_json(count.record);
  if (!document.is_object()) throw Error(ErrorKind::parse, "it is not an object");
  document["calls"] = Value(count.calls), document["timed_calls"] = Value(count.timed_calls);
  document["timed_seconds"] = Value(count.timed_seconds);
  document["first"] = Value(count.first), document["last"] = Value(count.last);
  RecordedCall call = record_from_document(document);
  if (call_id(call.id) != count.call)
    throw Error(ErrorKind::parse, "it is the record of another call");
  return call;
}

// What all folders sent, as far as it can be read, and what only the folder of this machine has.
RecordedCalls read_database(PostgresStore& database, const WarningSink& warn,
                            const Wanted& wanted) {
  constexpr double seconds_per_question = 60;  // of a plan, not of a call
  RecordedCalls out;
  const auto take = [&](const PostgresStore::CallCount& count) {
    try {
      add(call_in(count), out);
    } catch (const Error& error) {
      warn("passing over the recorded call " + count.call + " in " + database.where() + ": " +
           error.what());
    }
  };
  static_cast<void>(database.for_each_call(take, seconds_per_question, wanted));
  const std::string folder = default_recording_path();
  if (folder.empty()) return out;
  for (auto& [device, ops] : read_folder(folder, warn, wanted))
    for (auto& [op, calls] : ops)
      for (auto& [key, call] : calls) out[device][op].try_emplace(key, std::move(call));
  return out;
}

}  // namespace

RecordedCalls read_recorded(const std::string& place, const PersistentCache* store,
                            const WarningSink& on_warning, const Wanted& wanted) {
  const WarningSink warn = base::warnings_to(on_warning);
  if (!postgres::is_database_url(place)) return read_folder(place, warn, wanted);
  SharedStore* const shared = store == nullptr ? nullptr : database_of(*store);
  if (shared != nullptr && shared->url() == place)
    return read_database(shared->far(), warn, wanted);
  PostgresStore::Options options;
  options.connect_seconds = 10;
  options.on_warning = warn;
  options.meanwhile = "Recorded calls are read from " + default_recording_path() + " alone";
  PostgresStore database(place, options);
  return read_database(database, warn, wanted);
}

}  // namespace detail

RecordedCalls read_recorded(const std::string& place, const WarningSink& on_warning) {
  return detail::read_recorded(place, nullptr, on_warning);
}

}  // namespace ejk
