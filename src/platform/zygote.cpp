// SPDX-License-Identifier: Apache-2.0
// The zygote: its start, its requests, and its life, which ends with that of the host.
//
// It is not a child of the host, so that a host that waits for all of its children does not wait
// for it. It has nothing of the host's open and runs none of its code.
#include "platform/zygote.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include "base/env.h"
#include "base/file.h"
#include "base/format.h"

namespace ejk::detail {
namespace {

using base::retry_interrupted;
constexpr size_t max_sent_files = 8;

struct Request {
  WorkerLife life = nullptr;  // null: reap `worker`
  pid_t worker = -1;
};
struct Answer {
  pid_t worker = -1;
  int status = -1;  // of the reaped one; of one that was not started: errno
};

// ---- in the zygote: system calls only, as the host may have had threads ------------------------

int open_process(pid_t process) { return static_cast<int>(::syscall(SYS_pidfd_open, process, 0)); }

// Where its files are.
constexpr int to_host = STDERR_FILENO + 1, first_free = to_host + 1;

void close_from(int first) {
  constexpr int most = 1 << 16;
  if (::syscall(SYS_close_range, first, ~0U, 0) == 0) return;
  for (int file = first; file < most; ++file) ::close(file);
}

void forget_host(int socket) {
  ::setpgid(0, 0);  // what a terminal sends to the host is not for it
  ::prctl(PR_SET_NAME, "ejk-zygote");
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int kept = ::fcntl(socket, F_DUPFD, first_free);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int standard = 0; standard <= STDERR_FILENO; ++standard) ::dup2(nothing, standard);
  ::dup2(kept, to_host);
  close_from(first_free);
  if (::chdir("/") != 0) ::_exit(1);
}

// 0 bytes if the host is gone.
ssize_t receive(Request& request, std::span<int> files, size_t& count) {
  alignas(cmsghdr) char control[CMSG_SPACE(max_sent_files * sizeof(int))];
  iovec data{&request, sizeof request};
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  const ssize_t bytes =
      retry_interrupted([&] { return ::recvmsg(to_host, &message, MSG_CMSG_CLOEXEC); });
  count = 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (bytes > 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    count = std::min((header->cmsg_len - CMSG_LEN(0)) / sizeof(int), files.size());
    std::memcpy(files.data(), CMSG_DATA(header), count * sizeof(int));
  }
  return bytes;
}

Answer start(int host, WorkerLife life, std::span<const int> files) {
  const pid_t zygote = ::getpid();
  const pid_t worker = ::fork();
  if (worker == 0) {
    ::close(to_host), ::close(host);
    ::prctl(PR_SET_NAME, "ejk-worker");
    life(files, zygote);
    ::_exit(0);
  }
  return {worker, errno};
}

Answer reap(pid_t worker) {
  int status = -1;
  const pid_t got = retry_interrupted([&] { return ::waitpid(worker, &status, 0); });
  return {worker, got == worker ? status : -1};
}

[[noreturn]] void live_as_zygote(int socket, pid_t host_pid) {
  forget_host(socket);
  const int host = open_process(host_pid);
  const Answer hello{::getpid(), host < 0 ? errno : 0};
  if (::send(to_host, &hello, sizeof hello, MSG_NOSIGNAL) < 0 || host < 0) ::_exit(0);
  for (;;) {
    pollfd fds[] = {{to_host, POLLIN, 0}, {host, POLLIN, 0}};
    if (retry_interrupted([&] { return ::poll(fds, std::size(fds), -1); }) < 0) ::_exit(0);
    if (fds[1].revents != 0) ::_exit(0);  // the host has ended, and its workers end with this
    Request request;
    int files[max_sent_files];
    size_t count = 0;
    if (receive(request, files, count) != sizeof request) ::_exit(0);
    const Answer answer =
        request.life != nullptr ? start(host, request.life, {files, count}) : reap(request.worker);
    for (size_t i = 0; i < count; ++i) ::close(files[i]);
    if (::send(to_host, &answer, sizeof answer, MSG_NOSIGNAL) < 0) ::_exit(0);
  }
}

// ---- in the host -------------------------------------------------------------------------------

std::atomic<int> plans{0}, guarded_plans{0};

// Never destroyed: a tuning may run until the very end.
struct Zygote {
  std::once_flag once;
  std::mutex mutex;  // one request at a time
  base::Fd socket;
  pid_t pid = -1, host = -1;
  uid_t user = 0;
  std::string why_none = "no device was looked for";
};
Zygote& zygote() {
  static auto& one = *new Zygote;
  return one;
}
// In a worker: the state of the host's `once` is unfinished there.
bool is_worker = false;

bool tunings_are_possible() {
  if (plans > 0) return guarded_plans > 0;
  const std::string policy = base::env_or_empty("EJKERNEL_AUTOTUNE_POLICY");
  return policy != "heuristics" && policy != "frozen";
}

std::string lost() { return "the process that starts workers is gone"; }

bool ask(Zygote& z, const Request& request, std::span<const int> files, Answer& answer) {
  const std::lock_guard lock(z.mutex);
  if (!z.socket.valid()) return false;
  Request data = request;
  iovec part{&data, sizeof data};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(max_sent_files * sizeof(int))] = {};
  if (!files.empty()) {
    message.msg_control = control, message.msg_controllen = CMSG_SPACE(files.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files.size_bytes());
    std::memcpy(CMSG_DATA(header), files.data(), files.size_bytes());
  }
  const int to = z.socket.get();
  const bool answered =
      retry_interrupted([&] { return ::sendmsg(to, &message, MSG_NOSIGNAL); }) == sizeof data &&
      retry_interrupted([&] { return ::recv(to, &answer, sizeof answer, 0); }) == sizeof answer;
  if (!answered) z.socket = base::Fd(), z.why_none = lost();
  return answered;
}

void fork_zygote(Zygote& z) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    z.why_none = fmt::format("cannot make a socket: {}", std::strerror(errno));
    return;
  }
  base::Fd ours(ends[0]), its(ends[1]);
  z.host = ::getpid(), z.user = ::geteuid();
  // No handler of the host may run in what is forked.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t between = ::fork();
  if (between == 0) {
    if (::fork() == 0) is_worker = true, live_as_zygote(its.get(), z.host);
    ::_exit(0);
  }
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (between < 0) {
    z.why_none = fmt::format("cannot fork: {}", std::strerror(error));
    return;
  }
  retry_interrupted([&] { return ::waitpid(between, nullptr, 0); });
  its = base::Fd();
  Answer hello;
  if (retry_interrupted([&] { return ::recv(ours.get(), &hello, sizeof hello, 0); }) !=
          sizeof hello ||
      hello.status != 0) {
    z.why_none = "the process that starts workers did not start";
    return;
  }
  z.pid = hello.worker;
  z.socket = std::move(ours);
  z.why_none.clear();
}

}  // namespace

TuningPlan::TuningPlan(bool guarded_tunings) : guarded_tunings_(guarded_tunings) {
  ++plans, guarded_plans += guarded_tunings_;
}

TuningPlan::~TuningPlan() { --plans, guarded_plans -= guarded_tunings_; }

void start_zygote(bool (*used_before)()) {
  if (is_worker) return;
  Zygote& z = zygote();
  std::call_once(z.once, [&] {
    if (!tunings_are_possible())
      z.why_none = "devices were first looked for when no policy allowed to tune with a guard";
    else if (used_before()) z.why_none = "the program used a driver before this library did";
    else fork_zygote(z);
  });
}

std::string why_no_zygote() {
  Zygote& z = zygote();
  const std::lock_guard lock(z.mutex);
  if (!z.why_none.empty()) return z.why_none;
  if (z.host != ::getpid()) return "this process was forked after devices were looked for";
  if (z.user != ::geteuid()) return "the process has changed its user since";
  return "";
}

pid_t zygote_pid() { return zygote().pid; }

base::OrWhy<pid_t> start_worker(WorkerLife life, std::span<const int> files) {
  if (std::string why_not = why_no_zygote(); !why_not.empty()) return base::Why{std::move(why_not)};
  Answer answer;
  if (!ask(zygote(), {life, -1}, files, answer)) return base::Why{lost()};
  if (answer.worker < 0)
    return base::Why{fmt::format("cannot start a worker: {}", std::strerror(answer.status))};
  return answer.worker;
}

int reap_worker(pid_t worker) {
  Answer answer;
  return ask(zygote(), {nullptr, worker}, {}, answer) ? answer.status : -1;
}

}  // namespace ejk::detail
