// SPDX-License-Identifier: Apache-2.0
// Configurations that a store keeps from being run, because they crashed reproducibly.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/store.h>

namespace EJK_EXPORT ejk {

// One config of one call that ended its process by a fatal signal, again when it was repeated,
// beside another config that passed. Counts for this call, version of the op, device and
// environment only.
struct QuarantineRecord {
  // The call, the config that failed on it, and where it failed.
  EntryId id;
  Value config, environment;
  std::string why;   // for people: "crashed: SIGSEGV"
  std::string time;  // UTC, ISO 8601
};

// All readable records of the store in that directory, by op and time. A store that does not exist
// has none. Files that are not records are passed over with one warning (default:
// stderr_warnings()).
std::vector<QuarantineRecord> quarantine_list(const std::string& store_path, WarningSink warn = {});

// A config that was running when a process ended, for whatever reason. The next tuning of its op
// tries it again, after the others and in a child process.
struct SuspectRecord {
  // Where it ran, of which op, with which config.
  std::string device, op;
  Value config;
  int times = 0;  // processes
};
// All suspects of the store in that directory. Warns as quarantine_list does.
std::vector<SuspectRecord> suspect_list(const std::string& store_path, WarningSink warn = {});

// Removes the records of that op ("name@vVERSION", or "name" for all its versions; "" for all),
// suspects included, and tells how many configs that were. The next tuning tries them again.
size_t quarantine_clear(const std::string& store_path, std::string_view op = "");

}  // namespace ejk
