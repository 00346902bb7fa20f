// SPDX-License-Identifier: Apache-2.0
// Which store an address means.
#include <ejk/open_store.h>

#include <utility>

#include <ejk/error.h>

#include "base/env.h"
#include "store/shared.h"

namespace ejk {
namespace {

void require(detail::SharedStore& store) {
  const auto answer = store.far().ask({"SELECT 1"});
  if (!answer)
    throw Error(ErrorKind::io, "the store at " + store.far().where() +
                                   " cannot be used: " + answer.why +
                                   ". EJKERNEL_PERSISTENT_CACHE_URL_REQUIRED=1 makes that an "
                                   "error; without it the local store is used meanwhile");
}

}  // namespace

std::shared_ptr<Store> open_store(const std::string& address, OpenStoreOptions options) {
  return detail::open_store(address, std::move(options), {});
}

std::shared_ptr<Store> detail::open_store(const std::string& address, OpenStoreOptions options,
                                          PostgresStore::Options far) {
  const bool database = postgres::is_database_url(address);
  const std::string path = !database                   ? base::expand_home(address)
                           : options.directory.empty() ? default_store_path()
                                                       : options.directory;
  if (database && path.empty())
    throw Error(ErrorKind::invalid_argument,
                "a store in a database needs a directory in front of it; set "
                "EJKERNEL_PERSISTENT_CACHE_DIR or HOME");
  auto near = std::make_shared<DirectoryStore>(
      path, DirectoryStore::Options{options.read_only, options.on_warning, options.environment});
  if (!database) return near;
  far.on_warning = std::move(options.on_warning);
  far.environment = std::move(options.environment);
  auto store = std::make_shared<SharedStore>(std::move(near), address, std::move(far));
  if (base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_URL_REQUIRED") == "1") require(*store);
  return store;
}

}  // namespace ejk
