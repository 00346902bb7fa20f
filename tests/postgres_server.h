// SPDX-License-Identifier: Apache-2.0
// A server of PostgreSQL for a test program, in a directory of its own, and databases of it.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "store/postgres/libpq.h"
#include "store/postgres/link.h"
#include "store/postgres/postgres_store.h"
#include "store_fixture.h"

namespace ejk::testing {

// A thread cannot be started in a child that was forked beside others there.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool thread_sanitized = true;
#else
inline constexpr bool thread_sanitized = false;
#endif

// Deadlines that a busy machine keeps too.
inline detail::PostgresStore::Options patient_options(WarningSink sink = {}) {
  detail::PostgresStore::Options options;
  options.connect_seconds = options.get_seconds = options.put_seconds = options.prefetch_seconds =
      60;
  options.on_warning = std::move(sink);
  options.environment = environment();
  return options;
}

// The calling thread, and what it starts from now on.
inline bool enter_network(const std::string& file) {
  const int network = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const bool entered = network >= 0 && ::setns(network, CLONE_NEWNET) == 0;
  if (network >= 0) ::close(network);
  return entered;
}

class PostgresServer {
 public:
  // Why there is none on this machine; "" if there is.
  static std::string why_not() {
    if (!detail::postgres::libpq().why_not.empty()) return detail::postgres::libpq().why_not;
    return programs().empty() ? "no server of PostgreSQL is installed (Debian: postgresql)" : "";
  }

  // `listening`: on loopback too, at a free port, with passwords and these lines in its settings.
  // `network`: the file of a namespace that it runs in, where it listens to all addresses.
  // `place`: where its directory is made.
  explicit PostgresServer(bool listening = false, const std::string& settings = "",
                          const std::string& network = "",
                          const fs::path& place = memory_directory())
      : directory_(place), listening_(listening), network_(network) {
    if (::getuid() == 0 && ::chown(directory_.path().c_str(), nobody, nobody) != 0)
      throw std::runtime_error("chown");
    const int made = wait_for(start({programs() + "/initdb", "-D", data(), "-U", "postgres", "-N",
                                     "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"}));
    if (made != 0) throw std::runtime_error("initdb: " + read_text(log()));
    if (listening_) {
      port_ = free_port();
      write_text(data() + "/pg_hba.conf",
                 "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
    }
    if (!network_.empty())
      write_text(data() + "/pg_hba.conf", "local all all trust\nhost all all all trust\n");
    std::ofstream(data() + "/postgresql.conf", std::ios::app) << "fsync = off\n"
                                                              << settings << "\n";
    begin();
  }
  ~PostgresServer() { kill(SIGQUIT); }
  PostgresServer(const PostgresServer&) = delete;
  PostgresServer& operator=(const PostgresServer&) = delete;

  void begin() {
    const auto answers = [&] {
      // It refuses to start as long as one of its old processes lives.
      if (process_ == 0 || ::waitpid(process_, nullptr, WNOHANG) == process_) start_server();
      return static_cast<bool>(query("postgres", "SELECT 1"));
    };
    wait_until(answers, "the server that writes to " + log());
  }
  void start_server() {
    process_ = start({programs() + "/postgres", "-D", data(), "-k", directory_.path(), "-p", port_,
                      "-c", "max_connections=60", "-c", "shared_buffers=16MB", "-c",
                      std::string("listen_addresses=") + (!network_.empty() ? "*"
                                                          : listening_      ? "127.0.0.1"
                                                                            : "")});
  }
  // Ends it at once: SIGQUIT as a crash does, SIGKILL with all of its processes.
  void kill(int signal) {
    if (process_ <= 0) return;
    signal_all(SIGCONT);
    if (signal == SIGKILL) signal_all(signal);
    else ::kill(process_, signal);
    wait_for(std::exchange(process_, 0));
  }
  // Makes NAME.crt, which clients can trust, and its key; false if openssl cannot.
  bool authority(const std::string& name) const {
    return openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name +
        " -keyout " + path(name + ".key") + " -out " + path(name + ".crt"));
  }
  // From a moment later on, with a certificate for 127.0.0.1 of the authority in authority.crt.
  void serve_tls() const {
    const std::string key = data() + "/server.key", certificate = data() + "/server.crt";
    write_text(path("names"), "subjectAltName=IP:127.0.0.1\n");
    const bool made =
        authority("authority") &&
        openssl("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=db -keyout " +
                key + " -out " + path("request")) &&
        openssl("x509 -req -days 2 -CAcreateserial -in " + path("request") + " -CA " +
                path("authority.crt") + " -CAkey " + path("authority.key") + " -extfile " +
                path("names") + " -out " + certificate);
    if (!made) throw std::runtime_error("openssl: " + read_text(log()));
    fs::permissions(key, fs::perms::owner_read);
    for (const std::string& file : {key, certificate})
      if (::getuid() == 0 && ::chown(file.c_str(), nobody, nobody) != 0)
        throw std::runtime_error("chown");
    must("postgres", "ALTER SYSTEM SET ssl = on");
    must("postgres", "SELECT pg_reload_conf()");
  }
  void stop_time() { signal_all(SIGSTOP); }
  void go_on() { signal_all(SIGCONT); }

  // By the socket, as the superuser unless another one is named.
  std::string url(const std::string& database, const std::string& user = "postgres") const {
    return "postgresql://" + user + "@/" + database + "?host=" + directory_.path() +
           "&port=" + port_;
  }
  // By loopback.
  std::string tcp_url(const std::string& database, const std::string& user,
                      const std::string& password) const {
    return "postgresql://" + user + ":" + password + "@127.0.0.1:" + port_ + "/" + database;
  }
  const std::string& port() const { return port_; }
  std::string path(const std::string& name) const { return directory_ / name; }
  std::string data() const { return directory_ / "data"; }

  // One statement or several.
  detail::postgres::Answer query(const std::string& database, const std::string& sql) const {
    detail::postgres::Link::Options options;
    options.connect_seconds = 60;
    options.on_warning = [](const std::string&) {};
    detail::postgres::Link link(detail::postgres::read_address(url(database)), std::move(options));
    return link.ask({sql, {}, 60, true});
  }
  void must(const std::string& database, const std::string& sql) const {
    if (const auto answer = query(database, sql); !answer)
      throw std::runtime_error(sql.substr(0, 200) + ": " + answer.why);
  }
  // With the store's schema, empty.
  std::string new_database() {
    if (count_ == 0) {
      must("postgres", "CREATE DATABASE ejk_template");
      must("ejk_template", detail::postgres_schema_script());
    }
    const std::string name = "ejk_" + std::to_string(++count_);
    must("postgres", "CREATE DATABASE " + name + " TEMPLATE ejk_template");
    return name;
  }

  // The process that the programs of the test run as: a server refuses to be root.
  static constexpr uid_t nobody = 65534;
  pid_t start(const std::vector<std::string>& command) const {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child != 0) {
      ::setpgid(child, child);
      return child;
    }
    ::setpgid(0, 0);
    const int out = ::open(log().c_str(), O_CREAT | O_APPEND | O_WRONLY, 0666);
    ::dup2(out, 1), ::dup2(out, 2);
    if (!network_.empty() && !enter_network(network_)) ::_exit(1);
    if (::getuid() == 0 && (::setgid(nobody) != 0 || ::setuid(nobody) != 0)) ::_exit(1);
    ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
    if (::chdir(directory_.path().c_str()) != 0) ::_exit(1);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  static int wait_for(pid_t process) {
    int status = 0;
    while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
  std::string log() const { return directory_ / "log"; }
  static std::string free_port();

 private:
  bool openssl(const std::string& line) const {
    return std::system(("openssl " + line + " >>'" + log() + "' 2>&1").c_str()) == 0;
  }
  // Its sessions are children in groups of their own.
  void signal_all(int signal) const {
    std::vector<pid_t> all = {process_};
    ::kill(process_, SIGSTOP);  // it starts no session while they are listed
    std::error_code error;
    for (const auto& item : fs::directory_iterator("/proc", error)) {
      if (std::atoi(item.path().filename().c_str()) <= 0) continue;  // not a process
      // Unlike a stream it does not throw if the process has ended meanwhile.
      const std::string stat = base::read_file((item.path() / "stat").string(), 4096).text;
      const size_t name_end = stat.rfind(") ");
      if (name_end != stat.npos && std::atoi(stat.c_str() + name_end + 4) == process_)
        all.push_back(std::atoi(stat.c_str()));
    }
    for (const pid_t process : all) ::kill(process, signal);
  }
  static std::string programs() {
    std::error_code error;
    std::string newest;
    for (const auto& version : fs::directory_iterator("/usr/lib/postgresql", error))
      if (fs::exists(version.path() / "bin" / "postgres"))
        newest = std::max(newest, (version.path() / "bin").string());
    return newest;
  }

  Scratch directory_;
  bool listening_;
  std::string network_;
  std::string port_ = "5432";
  pid_t process_ = 0;
  int count_ = 0;
};

inline std::string PostgresServer::free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(socket);
  return std::to_string(ntohs(address.sin_port));
}

// Databases by place: one that no store uses any more is emptied and given to the next place.
class Databases {
 public:
  static Databases& of_this_program() {
    static Databases databases;
    return databases;
  }

  std::string url(const std::string& place) {
    if (!server_) server_ = std::make_unique<PostgresServer>();
    auto& [name, users] = places_[place];
    if (name.empty() && !free_.empty()) {
      name = free_.back();
      free_.pop_back();
      server_->must(name, "TRUNCATE ejk.entries, ejk.leases, ejk.calls, ejk.call_counts");
    } else if (name.empty()) {
      name = server_->new_database();
    }
    ++users;
    return server_->url(name);
  }
  void leave(const std::string& place) {
    const auto found = places_.find(place);
    if (--found->second.users > 0) return;
    free_.push_back(found->second.name);
    places_.erase(found);
  }

 private:
  struct Place {
    std::string name;
    int users = 0;
  };
  std::unique_ptr<PostgresServer> server_;
  std::map<std::string, Place> places_;
  std::vector<std::string> free_;
};

}  // namespace ejk::testing
