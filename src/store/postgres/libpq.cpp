// SPDX-License-Identifier: Apache-2.0
#include "store/postgres/libpq.h"

#include <dlfcn.h>

#include "base/env.h"

namespace ejk::detail::postgres {
namespace {

Libpq load() {
  Libpq api;
  const std::string file = base::env("EJK_LIBPQ_LIBRARY").value_or("libpq.so.5");
  // Never closed: connections and OpenSSL have state of their own.
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    api.why_not = file +
                  ", the client library of PostgreSQL, cannot be loaded; install it (Debian: "
                  "libpq5), or name another file by EJK_LIBPQ_LIBRARY";
    return api;
  }
#define EJK_LIBPQ_FIND(type, name, parameters)                              \
  api.name = reinterpret_cast<type(*) parameters>(::dlsym(library, #name)); \
  if (api.name == nullptr && api.why_not.empty()) api.why_not = file + " has no " #name;
  EJK_LIBPQ_CALLS(EJK_LIBPQ_FIND)
#undef EJK_LIBPQ_FIND
  return api;
}

}  // namespace

const Libpq& libpq() {
  static const Libpq api = load();
  return api;
}

}  // namespace ejk::detail::postgres
