// SPDX-License-Identifier: Apache-2.0
// The life of a guarded child: made harmless to its host, then one job after the other.
//
// The host may have threads that held locks when it was forked, so nothing here takes a lock that
// can be avoided; a child that hangs all the same ends by its deadline.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <cxxabi.h>

#include <ejk/gpu.h>

#include "base/file.h"
#include "base/process.h"
#include "base/thrown.h"
#include "guard/holdings.h"
#include "guard/host_state.h"
#include "guard/parcel_file.h"
#include "guard/shared_page.h"
#include "platform/program_cache.h"

namespace ejk::detail {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
#else
constexpr bool sanitized = false;
#endif

// Signal and exit handlers get no argument of ours. Set in children only.
Board* own_board = nullptr;
int own_events = -1;
pid_t own_pid = -1;

// A process that the kernel forks inherits the handlers, but its end is its own business.
bool is_forked_by_kernel() { return ::getpid() != own_pid; }

// ---- how it ends -------------------------------------------------------------------------------

// Only as long as it lives does the host find what it started. Comes back if there is no host.
void wait_for_the_end() {
  if (::write(own_events, &Board::dying, 1) != 1) return;
  for (;;) ::pause();
}

// Runs on a stack of its own, so that an endless recursion is seen too.
void note_signal(int signal, siginfo_t* info, void*) {
  if (!is_forked_by_kernel()) {
    Board& board = *own_board;
    const bool sent = info->si_code <= 0;  // by kill or raise, not by the processor
    if (!sent) board.fault_address = info->si_addr;
    board.signal_from_outside = sent && info->si_pid != ::getpid();
    board.signal = signal;
    wait_for_the_end();
  }
  ::raise(signal);  // its default action, now that SA_RESETHAND has put it back
}

void handle_signals(const sigset_t& hosts_mask) {
  alignas(16) static char stack[64 << 10];
  stack_t alternative{};
  alternative.ss_sp = stack, alternative.ss_size = sizeof stack;
  ::sigaltstack(&alternative, nullptr);

  sigset_t mask = hosts_mask;
  struct sigaction action {};
  action.sa_sigaction = note_signal;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER);
  for (const int s : fatal_signals) {
    ::sigaction(s, &action, nullptr);
    ::sigdelset(&mask, s);
  }
  ::signal(SIGINT, SIG_IGN);   // the host decides what Ctrl-C means
  ::signal(SIGXFSZ, SIG_IGN);  // a full file is an error of the write
  for (const int s : {SIGTERM, SIGHUP, SIGQUIT}) ::signal(s, SIG_DFL);  // not the host's handlers
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

// A thread that cannot allocate ends the process by a signal: that is the limit's doing.
void note_hunger() {
  std::set_new_handler([] {
    if (!is_forked_by_kernel()) own_board->starved = true;
    throw std::bad_alloc();
  });
}

[[noreturn]] void end_by(Board::Exit how, int status) {
  if (is_forked_by_kernel()) ::_exit(status);
  own_board->exit_status = status;
  own_board->exit = how;
  wait_for_the_end();
  ::_exit(status);
}

// The last handlers to be registered are the first to be called: those of the host, its static
// destructors and the flushing of its buffers do not come to their turn.
void note_exits() {
  ::on_exit([](int status, void*) { end_by(Board::Exit::exit, status); }, nullptr);
  ::at_quick_exit([] {
    if (!is_forked_by_kernel()) end_by(Board::Exit::quick_exit, 0);
  });
}

// ---- what it may do ----------------------------------------------------------------------------

void limit(decltype(RLIMIT_AS) what, uint64_t most) {
  rlimit now{};
  if (::getrlimit(what, &now) != 0) return;
  now.rlim_cur = std::min<rlim_t>({now.rlim_cur, now.rlim_max, most});
  ::setrlimit(what, &now);
}

uint64_t address_space() {
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  char text[32] = {};
  const ssize_t n = file < 0 ? -1 : ::read(file, text, sizeof text - 1);
  if (file >= 0) ::close(file);
  if (n <= 0) return 0;
  return std::strtoull(text, nullptr, 10) * base::page_size();
}

// Only while a job runs: the outputs are handed over without it.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    // Sanitizers reserve terabytes of addresses for themselves.
    if (const uint64_t used = address_space(); bytes != 0 && used != 0 && !sanitized)
      limit(RLIMIT_AS, used + bytes);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

// If memory runs out after all, the system shall take the child and not its host.
void volunteer_for_the_oom_killer() {
  const int file = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  (void)!::write(file, "1000", 4);
  ::close(file);
}

void redirect(const ChildEnds& ends) {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO), ::dup2(nothing, STDOUT_FILENO);
  ::dup2(ends.standard_error, STDERR_FILENO);
}

// A lock belongs to all copies of its descriptor: one that is held is opened anew, without it.
void let_go_of_lock(int fd) {
  const std::string number = std::to_string(fd);
  const std::string facts = base::read_file("/proc/self/fdinfo/" + number, 1 << 16).text;
  if (facts.find("\nlock:\t") == facts.npos) return;
  const int flags = ::fcntl(fd, F_GETFL) & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW);
  const int again = ::open(("/proc/self/fd/" + number).c_str(), flags | O_CLOEXEC);
  if (again < 0) return static_cast<void>(::close(fd));
  ::lseek(again, ::lseek(fd, 0, SEEK_CUR), SEEK_SET);
  ::dup3(again, fd, ::fcntl(fd, F_GETFD) == FD_CLOEXEC ? O_CLOEXEC : 0);
  ::close(again);
}

void let_go_of_locks() {
  for (const std::string& name : base::list_directory("/proc/self/fd")) {
    const int fd = std::atoi(name.c_str());
    struct stat status {};
    const bool known = ::fstat(fd, &status) == 0;
    if (known && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) let_go_of_lock(fd);
  }
}

// Processes that it forks die with it, however it dies, and those whose parents end become its own
// children, so that the host finds them.
void keep_descendants() {
  static pid_t forking = 0;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::pthread_atfork([] { forking = ::getpid(); }, nullptr,
                   [] {
                     ::prctl(PR_SET_PDEATHSIG, SIGKILL);
                     if (::getppid() != forking) ::_exit(0);
                   });
}

void become_harmless(const ChildEnds& ends, const ChildParent& parent) {
  ::setpgid(0, 0);  // with what it starts it can be ended at once
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent.pid) ::_exit(0);
  redirect(ends);
  limit(RLIMIT_CORE, 0);
  volunteer_for_the_oom_killer();
  handle_signals(parent.signals);
  note_exits();
  note_hunger();
  let_go_of_locks();
  keep_descendants();
}

// ---- one job -----------------------------------------------------------------------------------

void tell(const ChildEnds& ends, Board& board, Board::Phase phase) {
  board.phase = phase;
  const auto byte = static_cast<char>(phase);
  while (::write(ends.events, &byte, 1) < 0 && errno == EINTR) {
  }
}

void say(Board& board, std::string_view text) {
  const size_t length = std::min(text.size(), sizeof board.why - 1);
  std::memcpy(board.why, text.data(), length);
  board.why[length] = 0;
}

bool write_all(int file, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(file, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

// False with errno if the file cannot hold them.
bool hand_over(const std::vector<OutputBytes>& outputs, int file, Board& board) {
  if (::lseek(file, 0, SEEK_SET) != 0)
    return false;  // over the last ones: its pages are used again
  uint64_t total = 0;
  for (const OutputBytes& o : outputs) {
    const OutputHeader header{static_cast<uint64_t>(o.dtype), o.bytes.size()};
    if (!write_all(file, &header, sizeof header)) return false;
    if (!write_all(file, o.bytes.data(), o.bytes.size())) return false;
    total += sizeof header + o.bytes.size();
  }
  if (::ftruncate(file, static_cast<off_t>(total)) != 0) return false;
  board.outputs = outputs.size(), board.outputs_bytes = total;
  return true;
}

// Runs f and tells what it threw.
template <class F>
Board::Verdict verdict_of(F&& f, Board& board) {
  using enum Board::Verdict;
  try {
    return f();
  } catch (const DeviceError& e) {
    say(board, e.what());
    board.device_error = e.device_kind();
    return device_failed;
  } catch (const std::bad_alloc& e) {
    say(board, e.what());
    return out_of_memory;
  } catch (const std::system_error& e) {
    say(board, e.what());
    return lacked_resources;
  } catch (abi::__forced_unwind&) {
    end_by(Board::Exit::thread, 0);
  } catch (...) {
    say(board, base::what_was_thrown());
  }
  return threw;
}

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(1e9 * std::max(0., seconds)); }

Board::Verdict report(Trial& trial, const ChildEnds& ends, Board& board) {
  using enum Board::Verdict;
  return verdict_of(
      [&] {
        if (const auto overrun = trial.overrun()) {
          say(board, *overrun);
          return out_of_bounds;
        }
        if (hand_over(trial.outputs(), ends.outputs, board)) return passed;
        say(board, std::strerror(errno));
        return not_reported;
      },
      board);
}

// What every run must leave as it was.
struct Surroundings {
  ThreadState thread;
  ProcessState process;
  OpenFiles files;
  Holdings held = current_holdings();

  std::string put_back() const { return joined(thread.put_back(), process.put_back()); }
};

bool has_built = false;  // in this run, a program of a device

struct OneJob {
  const ChildWork& work;
  Job job;
  Board& board;
  const ChildEnds& ends;
  uint64_t memory_bytes;

  void go() {
    using enum Board::Verdict;
    board.why[0] = 0;
    board.starved = false;
    board.verdict = none;
    board.compile_nanoseconds = 0;
    board.spilled_bytes = 0;
    std::optional<Surroundings> before;
    if (!on_device()) before.emplace();
    Board::Verdict verdict = run();
    if (work.only_compiles) return finish(verdict, board.nanoseconds);
    if (verdict == passed && has_built) verdict = run_built();
    const uint64_t taken = board.nanoseconds;
    tell(ends, board, Board::Phase::reporting);
    verdict =
        verdict_of([&] { return before ? look_around(*before, verdict) : left(verdict); }, board);
    finish(verdict, taken);
  }

 private:
  bool on_device() const { return work.trial->device() != nullptr; }

  void finish(Board::Verdict verdict, uint64_t taken) {
    board.nanoseconds = taken;
    board.verdict = verdict;
    tell(ends, board, Board::Phase::finished);
  }

  Board::Verdict run() {
    using enum Board::Verdict;
    tell(ends, board, Board::Phase::resetting);
    const Board::Verdict verdict = verdict_of([&] { return work.trial->reset(), passed; }, board);
    if (verdict != passed) return verdict;
    // Drivers take addresses as they like.
    const MemoryLimit limited(on_device() ? 0 : memory_bytes);
    has_built = false;
    tell(ends, board, Board::Phase::running);
    const Board::Verdict of_run = execute();
    if (is_forked_by_kernel()) ::_exit(0);  // there is one who goes on here
    return of_run;
  }

  // Once more, without the compiler, to know what the run itself takes.
  Board::Verdict run_built() {
    const uint64_t first = board.nanoseconds;
    const Board::Verdict verdict = run();
    board.compile_nanoseconds = first - std::min(first, board.nanoseconds.load());
    return verdict;
  }

  Board::Verdict execute() {
    using enum Board::Verdict;
    Trial& trial = *work.trial;
    const double begin = work.stopwatch->now();
    const Board::Verdict verdict = verdict_of(
        [&] {
          if (job == nullptr) return trial.run_reference() ? passed : no_reference;
          trial.run(*job);
          trial.wait();
          return passed;
        },
        board);
    board.nanoseconds = nanoseconds(work.stopwatch->now() - begin);
    return verdict;
  }

  // Of a run on a device: what the driver does in its process is not the config's doing.
  Board::Verdict left(Board::Verdict verdict) {
    return verdict == Board::Verdict::passed ? report(*work.trial, ends, board) : verdict;
  }

  // The next job must not pay for this one. A closed file cannot be put back.
  Board::Verdict look_around(const Surroundings& before, Board::Verdict verdict) {
    using enum Board::Verdict;
    const ProcessState after;
    const std::string files = before.files.missing(), settings = before.put_back();
    if (job != nullptr && !files.empty())
      return changed("left changed: " + joined(settings, files));
    if (verdict == passed) verdict = report(*work.trial, ends, board);
    if (verdict != passed || job == nullptr) return verdict;
    if (!settings.empty()) {
      static_cast<void>(run());
      const std::string again = before.put_back();
      if (!again.empty()) return changed("left changed: " + again);
      after.put_back();  // of a library that has started
    }
    const std::string growing = grows_with_every_run(before.held, [&] { return run() == passed; });
    return growing.empty() ? passed : changed(growing);
  }

  Board::Verdict changed(const std::string& what) {
    say(board, what);
    return Board::Verdict::changed_host;
  }
};

bool read_all(int file, void* to, size_t bytes) {
  for (auto* next = static_cast<char*>(to); bytes > 0;) {
    const ssize_t n = ::read(file, next, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    next += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

// The config that the next order asks for, if it is told in words.
AnyConfig config_of(const std::string& text, const ConfigType& type) {
  std::string why;
  auto config = type.from_value(parse_json(text), why);
  if (config == nullptr) throw Error(ErrorKind::invalid_argument, why);
  return {std::move(config), &type};
}

void tell_of_builds(bool begins, int64_t spilled_bytes) {
  if (is_forked_by_kernel()) return;
  has_built = true;
  own_board->spilled_bytes += static_cast<uint64_t>(spilled_bytes);
  const ChildEnds ends{-1, own_events, -1, -1};
  tell(ends, *own_board, begins ? Board::Phase::building : Board::Phase::running);
}

}  // namespace

void live_as_child(const std::function<ChildWork()>& begin, Board& board, const ChildEnds& ends,
                   uint64_t memory_bytes, const ChildParent& parent) noexcept {
  own_board = &board, own_events = ends.events, own_pid = ::getpid();
  become_harmless(ends, parent);
  ChildWork work;
  const auto made = verdict_of([&] { return work = begin(), Board::Verdict::passed; }, board);
  if (made != Board::Verdict::passed) {
    tell(ends, board, Board::Phase::refused);
    ::_exit(0);
  }
  work.trial->arm();
  tell(ends, board, Board::Phase::waiting);
  for (;;) {
    Order order{};
    if (!read_all(ends.orders, &order, sizeof order)) ::_exit(0);
    std::string text(order.text_bytes, '\0');
    if (!read_all(ends.orders, text.data(), text.size())) ::_exit(0);
    AnyConfig told;
    if (!text.empty()) told = config_of(text, *work.config);
    else if (work.config == nullptr && order.job >= work.jobs.size()) ::_exit(0);
    const Job job = told ? &told : work.config == nullptr ? work.jobs[order.job] : nullptr;
    board.job = order.job;
    OneJob{work, job, board, ends, memory_bytes}.go();
  }
}

// ---- workers -----------------------------------------------------------------------------------

namespace {

enum File { orders, events, standard_error, outputs, board_page, parcel };

[[noreturn]] void live_of_parcel(std::span<const int> files, pid_t zygote, bool only_compiles) {
  void* const pages = map_board(files[board_page]);
  if (pages == nullptr) ::_exit(1);
  const ChildEnds ends{files[orders], files[events], files[standard_error], files[outputs]};
  sigset_t none;
  ::sigemptyset(&none);
  OpenedParcel opened;
  const auto stopwatch = system_stopwatch();
  live_as_child(
      [&] {
        opened = open_parcel(files[parcel]);
        watch_builds(tell_of_builds);
        return ChildWork{opened.trial.get(), stopwatch.get(), {}, opened.config, only_compiles};
      },
      *static_cast<Board*>(board_in(pages)), ends, 0, {zygote, none});
}

}  // namespace

void live_as_worker(std::span<const int> files, pid_t zygote) {
  live_of_parcel(files, zygote, false);
}

void live_as_compiler(std::span<const int> files, pid_t zygote) {
  only_compile_launches();
  live_of_parcel(files, zygote, true);
}

}  // namespace ejk::detail
