// SPDX-License-Identifier: Apache-2.0
// A page over HTTP that can only be read: on this machine, or with a token.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace ejk::cli {

struct HttpAnswer {
  std::string type;  // "text/html; charset=utf-8"
  std::string body;
};

// Answers GET requests from threads of its own until it is destroyed. On a loopback address it asks
// for a Host header of this machine, so that no other page's script can read it through a name that
// leads here; on any other address it asks for a token. Requests are limited in size and time.
class PageServer {
 public:
  // nullopt: there is no such page. Called by several threads at once.
  using Pages = std::function<std::optional<HttpAnswer>(const std::string& path)>;
  // `listen`: "127.0.0.1:0", "[::1]:8000", "0.0.0.0:8000"; port 0: any that is free. Throws
  // Failure.
  PageServer(const std::string& listen, Pages pages);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // Where it is, with the token if it asks for one.
  const std::string& url() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace ejk::cli
