// SPDX-License-Identifier: Apache-2.0
// The only file that sees httplib. It reads requests and writes answers; sockets, limits and who
// may read are here, because httplib reads as many headers as it is sent.
#include "http.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <httplib.h>

#include "base/file.h"
#include "output.h"

namespace ejk::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t max_request_bytes = 16 << 10;
constexpr size_t max_connections = 16;
constexpr std::chrono::seconds request_deadline{5}, answer_deadline{60};

[[noreturn]] void refuse(const std::string& listen, const std::string& why) {
  throw Failure(exit_usage, "--listen: got " + listen + "; " + why);
}

// ---- addresses

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  std::string host;  // as it stands in a URL: [::1]

  bool is_loopback() const {
    if (bytes.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(bytes);
      return (ntohl(v4.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
    }
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr);
  }
};

Address address_of(const std::string& listen) {
  constexpr const char* expected = "expected ADDRESS:PORT, such as 127.0.0.1:8000 or [::1]:0";
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) refuse(listen, expected);
  std::string host = listen.substr(0, colon);
  const std::string port = listen.substr(colon + 1);
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number > 65535)
    refuse(listen, expected);
  if (host == "localhost") host = "127.0.0.1";
  Address out;
  out.host = host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) refuse(listen, expected);
  std::memcpy(&out.bytes, found->ai_addr, found->ai_addrlen);
  out.size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return out;
}

uint16_t port_of(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(bound).sin_port
                                          : reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
}

// ---- who may read

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Failure(exit_failed, "the system gives no random numbers for a token");
  std::string out;
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

// In a time that does not tell how much of it is right.
bool is_token(std::string_view given, std::string_view token) {
  unsigned difference = given.size() != token.size();
  for (size_t i = 0; i < token.size(); ++i)
    difference |= static_cast<unsigned char>(i < given.size() ? given[i] : 0) ^
                  static_cast<unsigned char>(token[i]);
  return difference == 0;
}

std::string cookie_in(const httplib::Request& request, std::string_view cookie_name) {
  const std::string cookies = request.get_header_value("Cookie");
  std::string_view rest = cookies;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(';'), rest.size());
    std::string_view one = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one.starts_with(cookie_name)) return std::string(one.substr(cookie_name.size()));
  }
  return "";
}

std::string bearer_in(const httplib::Request& request) {
  constexpr std::string_view bearer = "Bearer ";
  const std::string given = request.get_header_value("Authorization");
  return given.starts_with(bearer) ? given.substr(bearer.size()) : "";
}

// ---- a connection: one request, limited in size and time

// None says `override`: which of these functions httplib has depends on its version.
class Connection : public httplib::Stream {
 public:
  explicit Connection(int socket) : socket_(socket) {}

  bool is_readable() const { return begin_ < end_ || ready(POLLIN, deadline_); }
  bool wait_readable() const { return is_readable(); }
  bool is_writable() const { return ready(POLLOUT, answer_deadline_); }
  bool wait_writable() const { return is_writable(); }
  ssize_t read(char* to, size_t size) {
    if (begin_ == end_ && !fill()) return -1;
    const size_t count = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, count);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, size_t size) {
    // Not more than fits: who stops reading must not hold the thread beyond the deadline.
    if (!is_writable()) return -1;
    const ssize_t n = ::send(socket_.get(), from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n;
  }
  // Nothing depends on who asks.
  void get_remote_ip_and_port(std::string&, int&) const {}
  void get_local_ip_and_port(std::string&, int&) const {}
  time_t duration() const { return 0; }
  socket_t socket() const { return socket_.get(); }

  // What the other side still sends must not make the system throw the answer away.
  void finish() {
    ::shutdown(socket_.get(), SHUT_WR);
    const auto until = std::min(answer_deadline_, Clock::now() + request_deadline);
    for (size_t left = max_request_bytes; left > 0 && ready(POLLIN, until);) {
      const ssize_t n = ::recv(socket_.get(), buffer_.data(), std::min(left, buffer_.size()), 0);
      if (n <= 0) return;
      left -= static_cast<size_t>(n);
    }
  }

 private:
  bool ready(short what, Clock::time_point until) const {
    pollfd one{socket_.get(), what, 0};
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      const int found = ::poll(&one, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
      if (found > 0) return (one.revents & (what | POLLHUP)) != 0;
      if (found == 0 || errno != EINTR) return false;
    }
  }
  bool fill() {
    if (left_ == 0 || !ready(POLLIN, deadline_)) return false;
    const ssize_t n = ::recv(socket_.get(), buffer_.data(), std::min(left_, buffer_.size()), 0);
    if (n <= 0) return false;
    begin_ = 0, end_ = static_cast<size_t>(n), left_ -= end_;
    return true;
  }

  base::Fd socket_;
  std::array<char, 4096> buffer_{};
  size_t begin_ = 0, end_ = 0, left_ = max_request_bytes;
  const Clock::time_point deadline_ = Clock::now() + request_deadline;
  const Clock::time_point answer_deadline_ = Clock::now() + answer_deadline;
};

}  // namespace

// ---- the server

class PageServer::Server : public httplib::Server {
 public:
  Server(const std::string& listen, Pages pages) : pages_(std::move(pages)) {
    const Address address = address_of(listen);
    socket_ = base::Fd(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (socket_.get() >= 0) ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (socket_.get() < 0 ||
        ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) !=
            0 ||
        ::listen(socket_.get(), static_cast<int>(max_connections)) != 0)
      throw Failure(exit_failed, "cannot serve at " + listen + ": " + std::strerror(errno));
    const uint16_t port = port_of(socket_.get());
    here_ = fmt::format("{}:{}", address.host, port);
    names_ = {here_, fmt::format("localhost:{}", port), fmt::format("127.0.0.1:{}", port),
              fmt::format("[::1]:{}", port)};
    if (!address.is_loopback()) token_ = random_token();
    cookie_name_ = fmt::format("ejk_token_{}=", port);  // browsers send cookies to every port
    url_ = "http://" + here_ + "/" + (token_.empty() ? "" : "?token=" + token_);
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      answer(request, response);
      return HandlerResponse::Handled;
    });
    set_exception_handler([](const httplib::Request&, httplib::Response& response,
                             std::exception_ptr) { response.status = 500; });
    acceptor_ = std::jthread([this](const std::stop_token& stop) { accept_all(stop); });
  }

  ~Server() override {
    acceptor_.request_stop();
    ::shutdown(socket_.get(), SHUT_RDWR);  // ends accept()
    acceptor_.join();
    std::unique_lock lock(mutex_);
    for (const int one : open_) ::shutdown(one, SHUT_RDWR);  // do not wait for a slow reader
    idle_.wait(lock, [&] { return open_.empty(); });
  }

  const std::string& url() const { return url_; }

 private:
  void accept_all(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const int one = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (one < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        // Too many files are open, for example: others may be closed soon.
        std::unique_lock lock(mutex_);
        idle_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stop.stop_requested(); });
        continue;
      }
      const std::lock_guard lock(mutex_);
      try {
        if (open_.size() == max_connections) throw std::system_error();
        open_.insert(one);
        std::thread([this, one] { serve(one); }).detach();
      } catch (const std::system_error&) {  // no thread can be had, either
        open_.erase(one);
        ::close(one);
      }
    }
  }

  void serve(int socket) {
    {
      Connection connection(socket);
      try {
        if (answer_one(*this, connection)) connection.finish();
      } catch (const std::exception&) {  // a page that cannot be sent ends no tuning
      }
      const std::lock_guard lock(mutex_);
      open_.erase(socket);  // before its number can be another one's
    }
    const std::lock_guard lock(mutex_);
    idle_.notify_all();
  }

  // From 0.18 on httplib is told between which addresses the connection is, too.
  static bool answer_one(auto& server, Connection& connection) {
    bool closed = false;
    if constexpr (requires { server.process_request(connection, true, closed, plainly); })
      return server.process_request(connection, true, closed, plainly);
    else
      return server.process_request(connection, std::string(), 0, std::string(), 0, true, closed,
                                    plainly);
  }

  // Parts of a page could be asked for a thousand times in one request, and compressing one takes
  // the CPU from what is measured.
  static void plainly(httplib::Request& request) {
    request.ranges.clear();
    for (const char* name : {"Range", "Accept-Encoding", "Expect"}) request.headers.erase(name);
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    response.set_header("Cache-Control", "no-store");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cross-Origin-Resource-Policy", "same-origin");
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src "
                        "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'");
    const auto refuse = [&](int status, const std::string& why) {
      response.status = status;
      response.set_content(why + "\n", "text/plain; charset=utf-8");
    };
    if (request.method != "GET" && request.method != "HEAD")
      return refuse(405, "This page can only be read.");
    if (token_.empty()) {
      const std::string host = request.get_header_value("Host");
      if (std::ranges::find(names_, host) == names_.end())
        return refuse(421, "This page is served as http://" + here_ + "/ only.");
    } else if (request.path == "/" && request.has_param("token")) {
      if (!is_token(request.get_param_value("token"), token_))
        return refuse(401, "This is not the token that ejk printed.");
      response.set_header("Set-Cookie",
                          cookie_name_ + token_ + "; HttpOnly; SameSite=Strict; Path=/");
      return response.set_redirect("/", 303);
    } else if (!is_token(cookie_in(request, cookie_name_), token_) &&
               !is_token(bearer_in(request), token_)) {
      return refuse(401, "Open the address that ejk printed, with its token.");
    }
    const auto page = pages_(request.path);
    if (!page) return refuse(404, "There is no such page.");
    response.status = 200;
    response.set_content(page->body, page->type.c_str());
  }

  const Pages pages_;
  base::Fd socket_;
  std::string here_, url_, token_, cookie_name_;
  std::array<std::string, 4> names_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::set<int> open_;  // sockets of connections
  std::jthread acceptor_;
};

PageServer::PageServer(const std::string& listen, Pages pages)
    : server_(std::make_unique<Server>(listen, std::move(pages))) {}
PageServer::~PageServer() = default;
const std::string& PageServer::url() const { return server_->url(); }

}  // namespace ejk::cli
