// SPDX-License-Identifier: Apache-2.0
// The URL of a database: what libpq gets of it, and what may be shown.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ejk::detail::postgres {

bool is_database_url(std::string_view address);  // postgresql:// or postgres://

// The URL without its secrets, for errors before it could be read.
std::string without_password(std::string_view url);

struct Address {
  std::vector<std::pair<std::string, std::string>> parameters;  // for PQconnectStartParams
  std::string where;                 // "postgresql://user@host:port/database"
  std::vector<std::string> secrets;  // that no text may contain
  // connect_timeout of the URL, which libpq only obeys where it waits itself.
  std::optional<double> connect_seconds;

  std::string scrubbed(std::string text) const;
};

// Adds sslmode=verify-full unless the URL says something else or every host is a socket or
// loopback. Throws Error(invalid_argument) if it is no URL of a database, or if its connect_timeout
// is not a number of seconds.
Address read_address(const std::string& url);

}  // namespace ejk::detail::postgres
