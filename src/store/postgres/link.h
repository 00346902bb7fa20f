// SPDX-License-Identifier: Apache-2.0
// The one connection of a process to a database, and the thread that owns it.
//
// Callers hand over a query with a deadline and wait. Nothing but the thread touches the
// connection, so that a name look-up that hangs, or a server that does not answer, holds up no
// caller for longer than that. A forked child never touches it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ejk/warning.h>

#include "base/time.h"
#include "store/postgres/address.h"
#include "store/postgres/breaker.h"

namespace ejk::detail::postgres {

using Field = std::optional<std::string>;  // nullopt: NULL
using Row = std::vector<Field>;

struct Query {
  std::string sql;
  std::vector<Field> parameters = {};  // $1, $2...
  double seconds = 2;                  // from when it is asked
  bool is_script = false;              // several statements, without parameters
};

enum class Trouble {
  none,
  away,       // no connection, and none is tried for now
  timed_out,  // the deadline passed; the query may have been done or not
  refused,    // the server is there but cannot be used
  sql,        // the server says that the query is wrong, or not allowed
};

struct Answer {
  Trouble trouble = Trouble::none;
  std::string why = {}, sqlstate = {};
  std::vector<Row> rows = {};

  explicit operator bool() const { return trouble == Trouble::none; }
};

// What some errors are called.
inline constexpr const char *not_allowed = "42501", *no_table = "42P01", *no_function = "42883";

std::string array_of(const std::vector<Field>& texts);  // as PostgreSQL reads it

// 0 to 1, different in every process.
double random_number();

class Link {
 public:
  struct Options {
    double connect_seconds = 1;  // unless the address has its own
    // A server that starts, or has too many clients, refuses at once: then ask again until then.
    bool connect_again = false;
    double idle_seconds = 30;  // without work, until the connection is closed
    Breaker::Options breaker = {};
    std::function<double()> now = base::seconds_now;
    std::function<double()> random = random_number;
    WarningSink on_warning = {};
    std::string meanwhile = {};  // what happens while it is away
    // Asked on every new connection; `greeted` says why the database cannot be used, or "".
    Query greeting = {};
    std::function<std::string(const Answer&)> greeted = {};
    std::function<void()> on_return = {};  // from the thread: it can be asked again
  };

  Link(Address address, Options options);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // After a lost connection a query may run twice.
  Answer ask(Query query);
  // Whether a query is known to fail for now.
  bool is_away() const;

  // Asks it every so many seconds, whatever the answer, until told to stop.
  uint64_t repeat(Query query, double every_seconds);
  void stop_repeating(uint64_t id);

  const std::string& where() const { return where_; }

 private:
  struct State;
  bool is_forked() const;

  const pid_t owner_;
  const std::string where_;
  std::shared_ptr<State> state_;
};

}  // namespace ejk::detail::postgres
