// SPDX-License-Identifier: Apache-2.0
// A folder of recorded calls: one JSON file per call.
#pragma once

#include <optional>
#include <string>

#include <ejk/record.h>

#include "base/directory.h"

namespace ejk::detail {

inline constexpr const char* record_format = "v1";  // the folder of all of them
inline constexpr size_t max_record_bytes = size_t{1} << 20;

std::string record_folder(const EntryId& id);  // below the top, with '/' between names
std::string record_name(const EntryId& id);

// Calls fn(directory, name) for the file of every record.
template <class Fn>
void for_each_record_file(const base::Directory& folder, Fn fn) {
  const base::Directory top = folder.below(record_format);
  for (const std::string& device : top.names()) {
    const base::Directory ops = top.below(device);
    for (const std::string& op : ops.names()) {
      const base::Directory below = ops.below(op);
      for (const std::string& file : below.names())
        if (file.ends_with(".json")) fn(below, file);
    }
  }
}

// What a file turned out to be.
struct LoadedRecord {
  std::optional<RecordedCall> call;
  bool absent = false;
  bool newer = false;  // written by a newer version, or unreadable: not ours to replace
  std::string why;
};
LoadedRecord load_record(const base::Directory& in, const std::string& name);

}  // namespace ejk::detail
