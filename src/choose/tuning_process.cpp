// SPDX-License-Identifier: Apache-2.0
// Forks, tunes there by turns of work and rest, and reads the result.
#include "choose/tuning_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/format.h"
#include "base/process.h"
#include "base/thrown.h"
#include "base/time.h"
#include "tune/rest.h"

namespace ejk::detail {

double DutyCycle::rest_after(double work_seconds) {
  work_ += work_seconds;
  if (work_ < min_work || !(share_ < 1)) return 0;
  return std::exchange(work_, 0) * (1 / share_ - 1);
}

namespace {

// ---- what both see -----------------------------------------------------------------------------

struct Board {
  std::atomic<uint64_t> signs{0};  // of life
  std::atomic<bool> hold{false};   // others need the machine
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class SharedBoard {
 public:
  SharedBoard() {
    void* const page =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) board_ = new (page) Board;
  }
  ~SharedBoard() {
    if (board_ != nullptr) ::munmap(board_, sizeof(Board));
  }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* get() const { return board_; }

 private:
  Board* board_ = nullptr;
};

// ---- the result as a document ------------------------------------------------------------------

Value document_of(const TuneResult& result) {
  Entry entry;
  entry.outcome = result.outcome;
  entry.config = result.config.to_value();
  entry.evidence = result.evidence;
  entry.candidates = result.candidates;
  Value out = Value::object({{"entry", entry_to_document(entry)},
                             {"heuristic_problem", result.heuristic_problem},
                             {"note", result.note}});
  if (result.heuristic_rejection)
    out["heuristic_rejection"] = std::string(name_of(*result.heuristic_rejection));
  if (result.winner) out["winner"] = static_cast<int64_t>(*result.winner);
  return out;
}

const Value& member(const Value& document, std::string_view name) {
  const Value* const found = document.find(name);
  if (found == nullptr) throw Error(ErrorKind::parse, "a result without its parts");
  return *found;
}

// Throws Error(parse) for any other document.
TuneResult result_of(const Value& document, const TuneTask& task) {
  const Entry entry = entry_from_document(member(document, "entry"));
  TuneResult result;
  result.outcome = entry.outcome;
  result.evidence = entry.evidence;
  result.candidates = entry.candidates;
  result.heuristic_problem = member(document, "heuristic_problem").as_string();
  if (const Value* const rejection = document.find("heuristic_rejection"))
    result.heuristic_rejection = named<Rejection>(rejection->as_string());
  result.note = member(document, "note").as_string();
  const Value* const winner = document.find("winner");
  if (winner == nullptr) return result;
  result.winner = static_cast<uint64_t>(winner->as_int());
  const bool is_candidate = *result.winner < task.candidates->size();
  if (is_candidate) result.config = task.candidates->config(*result.winner);
  else if (task.heuristic) result.config = *task.heuristic;
  return result;
}

// ---- the process -------------------------------------------------------------------------------

// Tells the process that waits for this tuning that it goes on.
class SignOfLife final : public TuningLease {
 public:
  explicit SignOfLife(Board& board) : board_(board) {}
  void refresh() override { board_.signs.fetch_add(1, std::memory_order_relaxed); }

 private:
  Board& board_;
};

double cpu_seconds() {
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  double sum = 0;
  for (const auto whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    if (::getrusage(whose, &used) == 0) sum += seconds(used.ru_utime) + seconds(used.ru_stime);
  }
  return sum;
}

void sleep_for(double seconds) {
  const timespec time{
      static_cast<time_t>(seconds),
      static_cast<long>(1e9 * (seconds - static_cast<double>(static_cast<time_t>(seconds))))};
  ::nanosleep(&time, nullptr);
}

// Between runs: as the share wants it, and as long as others need the machine.
class Rests {
 public:
  Rests(double share, Board& board) : cycle_(share), board_(board) {}

  void operator()() {
    // Children that still run are not among the CPU seconds, but they take time.
    const double worked = std::max(base::seconds_now() - wall_, cpu_seconds() - cpu_);
    for (double left = cycle_.rest_after(worked); left > 0 || board_.hold; left -= slice) {
      sleep_for(board_.hold ? slice : std::min(left, slice));
      board_.signs.fetch_add(1, std::memory_order_relaxed);
    }
    wall_ = base::seconds_now(), cpu_ = cpu_seconds();
  }

 private:
  static constexpr double slice = 0.1;  // seconds
  DutyCycle cycle_;
  Board& board_;
  double wall_ = base::seconds_now(), cpu_ = cpu_seconds();
};

// A pipe, a connection or a lock of the host must end when the host closes it, and the one file
// that is kept must end with this process, whatever candidates execute. Returns its number.
int close_files_but(int kept) {
  constexpr int first = STDERR_FILENO + 1;
  if (kept != first) ::dup3(kept, first, O_CLOEXEC);
  if (::close_range(first + 1, ~0U, 0) != 0)
    for (const std::string& name : base::list_directory("/proc/self/fd"))
      if (const int file = std::atoi(name.c_str()); file > first) ::close(file);
  return first;
}

// Neither what the host does at its end nor its destructors are for this process, if a candidate
// ends it.
void end_without_the_host() {
  ::on_exit([](int, void*) { ::_exit(EXIT_FAILURE); }, nullptr);
  ::at_quick_exit([] { ::_exit(EXIT_FAILURE); });
}

void become_modest(pid_t host) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != host) ::_exit(EXIT_FAILURE);
  // Not SCHED_IDLE: on a machine that is busy again a run that has begun would never end.
  ::setpriority(PRIO_PROCESS, 0, 19);
  const rlimit no_core{};  // of a candidate that crashes in the race
  ::setrlimit(RLIMIT_CORE, &no_core);
  // What the host has in its buffers is the host's to write, and what candidates say is not said.
  if (const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC); nowhere >= 0)
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      ::dup2(nowhere, standard);
  for (int s = 1; s < SIGRTMIN; ++s) ::signal(s, SIG_DFL);  // not the host's handlers
  for (const int s : {SIGINT, SIGPIPE, SIGHUP}) ::signal(s, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void live(Tuner& tuner, TuneTask& task, double share, Board& board, int out,
                       pid_t host) noexcept {
  become_modest(host);
  end_without_the_host();
  out = close_files_but(out);
  int status = EXIT_FAILURE;
  try {
    SignOfLife sign(board);
    task.lease = &sign;
    task.journal = nullptr;  // its files are the host's, which does not die with this process
    rest_between_runs = Rests(share, board);
    const std::string text = stable_json(document_of(tuner.tune(task)));
    size_t written = 0;
    while (written < text.size()) {
      const ssize_t n = base::retry_interrupted(
          [&] { return ::write(out, text.data() + written, text.size() - written); });
      if (n <= 0) break;
      written += static_cast<size_t>(n);
    }
    if (written == text.size()) status = EXIT_SUCCESS;
  } catch (...) {  // the status says it
  }
  ::_exit(status);  // nothing of the host is flushed or destroyed here
}

// ---- the host ----------------------------------------------------------------------------------

class TuningProcess {
 public:
  TuningProcess(Tuner& tuner, TuneTask task, double share) {
    int ends[2];
    if (board_.get() == nullptr || ::pipe2(ends, O_CLOEXEC) != 0) return;
    base::Fd out(ends[1]);
    told_ = base::Fd(ends[0]);
    const pid_t host = ::getpid();
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_ = ::fork();
    if (pid_ == 0) live(tuner, task, share, *board_.get(), out.get(), host);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid_ > 0) ::setpgid(pid_, pid_);  // here too: it may be ended before it has done so
  }
  ~TuningProcess() { end(); }
  TuningProcess(const TuningProcess&) = delete;
  TuningProcess& operator=(const TuningProcess&) = delete;

  bool started() const { return pid_ > 0; }

  enum class Told { all, gave_way, silent };
  // Until the process has ended, or must.
  Told wait(const Background::Turn& turn, const std::atomic<bool>* stop, double silence) {
    uint64_t signs = 0;
    double heard = base::seconds_now();
    for (;;) {
      constexpr int look_again = 250;  // ms
      pollfd files[] = {{told_.get(), POLLIN, 0}, {turn.give_way, POLLIN, 0}};
      if (::poll(files, 2, look_again) < 0 && errno != EINTR) return Told::silent;
      if (files[1].revents != 0) return Told::gave_way;
      if (stop != nullptr && stop->load()) return Told::gave_way;  // the process does not see it
      if (files[0].revents != 0 && !read_some()) return Told::all;
      board_.get()->hold = turn.is_busy && turn.is_busy();
      const uint64_t now = board_.get()->signs;
      if (std::exchange(signs, now) != now) heard = base::seconds_now();
      else if (base::seconds_now() - heard > silence) return Told::silent;
    }
  }
  const std::string& text() const { return text_; }

  // How it ended, for people; "" if well. Ends it if it has not.
  std::string end() {
    if (pid_ <= 0) return {};
    const pid_t pid = std::exchange(pid_, -1);
    // Its number is not given to another process until it is reaped.
    siginfo_t info{};
    if (base::retry_interrupted([&] {
          return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
        }) != 0)
      return {};
    ::kill(-pid, SIGKILL);
    ::kill(pid, SIGKILL);
    int status = 0;
    if (base::retry_interrupted([&] { return ::waitpid(pid, &status, 0); }) != pid) return {};
    if (WIFSIGNALED(status)) return "died of " + base::signal_name(WTERMSIG(status));
    return WEXITSTATUS(status) == 0 ? "" : fmt::format("ended with {}", WEXITSTATUS(status));
  }

 private:
  bool read_some() {
    char bytes[1 << 14];
    const ssize_t n =
        base::retry_interrupted([&] { return ::read(told_.get(), bytes, sizeof bytes); });
    if (n <= 0) return false;
    text_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  SharedBoard board_;
  base::Fd told_;
  pid_t pid_ = -1;
  std::string text_;
};

}  // namespace

base::OrWhy<TuneResult> tune_in_process(Tuner& tuner, TuneTask task, const Background::Turn& turn,
                                        double silence) {
  const WhileOthersMayFork free;
  const std::atomic<bool>* const stop = task.stop;
  TuningProcess process(tuner, task, turn.share);
  if (!process.started()) return base::Why{"a process for the tuning could not be started"};
  using enum TuningProcess::Told;
  const auto told = process.wait(turn, stop, silence);
  if (told == gave_way) return base::Why{};
  if (told == silent)
    return base::Why{
        fmt::format("the process that tuned it gave no sign of life for {:g} s", silence)};
  try {
    return result_of(parse_json(process.text()), task);
  } catch (const Error&) {
    const std::string how = process.end();
    return base::Why{"the process that tuned it " + (how.empty() ? "told nothing" : how)};
  }
}

}  // namespace ejk::detail
