// SPDX-License-Identifier: Apache-2.0
// How quarantine records are kept: one file each, in <store>/quarantine.
#pragma once

#include <optional>
#include <string>

#include <ejk/quarantine.h>

#include "base/file.h"

namespace ejk::detail {

// Makes the folders it needs.
base::FileError quarantine_put(const std::string& store_path, const QuarantineRecord& record);
// Why there is a record like this one but for its reason and time; nullopt if there is none. Looks
// at one file, however many there are.
std::optional<std::string> quarantine_reason(const std::string& store_path,
                                             const QuarantineRecord& record);

}  // namespace ejk::detail
