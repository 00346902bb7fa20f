// SPDX-License-Identifier: Apache-2.0
// Recorded calls of a folder, or of a database and this machine's folder.
#pragma once

#include <functional>
#include <string>

#include <ejk/record.h>
#include <ejk/store.h>

namespace ejk::detail {

// As ejk::read_recorded does, of the devices that are wanted (default: all). If `store` has the
// database that is meant, its connection is used: if that is away, it has been said. nullptr: there
// is no store.
RecordedCalls read_recorded(const std::string& place, const PersistentCache* store,
                            const WarningSink& on_warning,
                            const std::function<bool(const std::string& device)>& wanted = {});

}  // namespace ejk::detail
