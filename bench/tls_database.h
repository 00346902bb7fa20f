// SPDX-License-Identifier: Apache-2.0
// A store in a database on loopback, behind TLS, for a login that may write.
#pragma once

#include <cstdio>
#include <string>

#include "../tests/postgres_server.h"

namespace bench {

// Says why there is no server, if so.
inline bool there_is_a_server() {
  const std::string why = ejk::testing::PostgresServer::why_not();
  if (!why.empty()) std::printf("%s\n", why.c_str());
  return why.empty();
}

struct TlsStore {
  std::string database, url;
};

inline TlsStore store_behind_tls(ejk::testing::PostgresServer& server) {
  server.serve_tls();
  const std::string database = server.new_database(), password = "bench";
  server.must("postgres",
              "CREATE ROLE ann LOGIN PASSWORD '" + password + "'; GRANT ejk_writer TO ann");
  const std::string url = server.tcp_url(database, "ann", password) +
                          "?sslmode=verify-full&sslrootcert=" + server.path("authority.crt");
  while (!ejk::detail::PostgresStore(url, ejk::testing::patient_options([](const std::string&) {}))
              .ask({"SELECT 1"})) {  // the server reads its settings a bit later
  }
  return {database, url};
}

}  // namespace bench
