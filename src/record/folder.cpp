// SPDX-License-Identifier: Apache-2.0
#include "record/folder.h"

#include <cerrno>

#include <ejk/error.h>

#include "base/sha256.h"

namespace ejk::detail {

std::string record_folder(const EntryId& id) {
  return record_format + ("/" + base::file_name_of(id.device) + "/") + base::file_name_of(id.op);
}

std::string record_name(const EntryId& id) { return base::sha256_hex(id.spec, 32) + ".json"; }

LoadedRecord load_record(const base::Directory& in, const std::string& name) {
  const auto [text, error, strange] = in.read(name, max_record_bytes);
  if (error.is_absent()) return {{}, true, false, ""};
  if (error) return {{}, false, error.code != EFBIG, error.text()};
  try {
    const Value document = parse_json(text);
    const Value* schema = document.find("schema");
    if (schema != nullptr && schema->is_int() && schema->as_double() > record_schema)
      return {{}, false, true, "it was written by a newer version"};
    return {record_from_document(document), false, false, ""};
  } catch (const Error& problem) {
    return {{}, false, false, problem.what()};
  }
}

}  // namespace ejk::detail
