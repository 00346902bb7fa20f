// SPDX-License-Identifier: Apache-2.0
// A store by its address: a directory, or a database that many machines share.
#pragma once

#include <memory>
#include <string>

#include <ejk/detail/export.h>
#include <ejk/store.h>

namespace EJK_EXPORT ejk {

// How a store is opened.
struct OpenStoreOptions {
  bool read_only = false;       // nothing is written, and no lease is taken
  WarningSink on_warning = {};  // default: stderr_warnings()
  Value environment = {};       // of this process, for answers_before; default: cpu_device()'s
  std::string directory = {};   // in front of a database; default: default_store_path()
};

// The path of a directory (a leading "~" is the home directory), or a URL of PostgreSQL:
// postgresql://user@host/database. In front of a database there is always a directory: it answers
// first and keeps everything that this machine found. A database that cannot be reached is a
// warning, and is used as soon as it can be; with EJKERNEL_PERSISTENT_CACHE_URL_REQUIRED=1 it is an
// Error(io) here. Throws Error(invalid_argument) if the address is neither.
std::shared_ptr<Store> open_store(const std::string& address, OpenStoreOptions options = {});

}  // namespace ejk
