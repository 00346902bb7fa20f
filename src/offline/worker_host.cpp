// SPDX-License-Identifier: Apache-2.0
// The host's side of a worker: start, requests, answers, and how it ended.
#include <ejk/worker.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <ejk/error.h>

#include "base/file.h"
#include "base/format.h"
#include "base/hidden.h"
#include "base/process.h"
#include "base/time.h"
#include "base/warn.h"
#include "offline/worker_messages.h"
#include "store/crash_journal.h"
#include "store/postgres/address.h"

namespace ejk {
namespace {

using SteadyClock = base::Clock;
using detail::count_in;
using detail::event_in;
using detail::Rubbish;
using detail::text_in;
using detail::WorkerEvent;
using std::chrono::milliseconds;

constexpr size_t longest_line = size_t{16} << 20;
// A config that passes in a guarded run and ends process after process is left out after the fourth
// (first_runs.cpp); where nothing is guarded, after the second.
constexpr int max_attempts = 5;
constexpr milliseconds look_around{100};
constexpr milliseconds silence{1'000};        // after which the host itself says that time passes
constexpr milliseconds time_to_leave{2'000};  // for a worker that has nothing to do

SteadyClock::time_point after(double seconds) {
  return SteadyClock::now() + base::duration_of(seconds);
}

// The beginning of what it said, as one JSON string.
std::string quoted(std::string_view text) {
  constexpr size_t most = 80;
  const bool cut = text.size() > most;
  return stable_json(Value(text.substr(0, most))) + (cut ? "..." : "");
}

// ---- one process -------------------------------------------------------------------------------

// Owns the process, its process group and both its channels.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command) { start(command); }
  ~Process() {
    if (pid_ < 0) return;
    input_ = base::Fd();  // the end of its requests
    const auto patience = SteadyClock::now() + time_to_leave;
    while (!has_ended() && SteadyClock::now() < patience) {
      ::poll(nullptr, 0, 5);
      forget_output();
    }
    end();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Why it could not be started; "" if it was.
  const std::string& why_not() const { return why_not_; }

  // Its next line; nullopt if there is none yet. Waits for a short while.
  std::optional<std::string> line() {
    for (;;) {
      if (const size_t end = said_.find('\n', looked_at_); end != said_.npos) {
        std::string found = said_.substr(0, end);
        said_.erase(0, end + 1);
        looked_at_ = 0;
        return found;
      }
      looked_at_ = said_.size();
      if (said_.size() > longest_line || !take_more()) return std::nullopt;
    }
  }
  bool said_more() {
    char buffer[4096];
    return !said_.empty() || ::read(output_.get(), buffer, sizeof buffer) > 0;
  }
  const std::string& said() const { return said_; }  // of the line that is not complete
  bool talks_without_end() const { return said_.size() > longest_line; }

  // Sends as much as it takes at the moment.
  void send(std::string_view& text) {
    const ssize_t n = ::send(input_.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR) text = {};  // it reads no more
  }

  void interrupt() { ::kill(-pid_, SIGINT); }

  // The process is left to be waited for, so that its number stays its own.
  bool has_ended() const {
    siginfo_t info{};
    const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    return result != 0 || info.si_pid != 0;
  }

  // Ends it with all it started, and says how it had ended by itself; "" if it had not.
  std::string end() {
    const bool by_itself = has_ended();
    ::kill(-pid_, SIGKILL);
    int status = 0;
    pid_t found = 0;
    while ((found = ::waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
    }
    const bool known = found == std::exchange(pid_, -1);
    if (!by_itself) return "";
    if (!known) return "exited with unknown status";  // this process ignores its children
    if (WIFSIGNALED(status)) return "was ended by " + base::signal_name(WTERMSIG(status));
    return fmt::format("ended itself with exit code {}", WEXITSTATUS(status));
  }

 private:
  void cannot(const std::string& step, int code) {
    why_not_ = fmt::format("cannot {}: {}", step, std::strerror(code));
  }

  void start(const std::vector<std::string>& command) {
    int input[2], output[2];
    // A socket, because a write to a pipe without a reader would send a signal to this process.
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
      return cannot("make a socket", errno);
    input_ = base::Fd(input[1]);
    const base::Fd its_input(input[0]);
    if (::pipe2(output, O_CLOEXEC) != 0) return cannot("make a pipe", errno);
    output_ = base::Fd(output[0]);
    const base::Fd its_output(output[1]);
    ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
    spawn(command, its_input.get(), its_output.get());
  }

  void spawn(const std::vector<std::string>& command, int its_input, int its_output) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_adddup2(&files, its_input, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, its_output, STDOUT_FILENO);
    // A group of its own: Ctrl-C comes from its host alone, once, and all it starts ends with it.
    ::posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t usual, none;
    ::sigemptyset(&usual), ::sigemptyset(&none);
    ::sigaddset(&usual, SIGINT), ::sigaddset(&usual, SIGPIPE);
    ::posix_spawnattr_setsigdefault(&attributes, &usual);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const int error =
        ::posix_spawnp(&pid_, words.front(), &files, &attributes, words.data(), environ);
    if (error != 0) {
      pid_ = -1;
      cannot("start " + command.front(), error);
    }
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }

  // False if there was nothing to be had for a while.
  bool take_more() {
    pollfd ready{output_.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(look_around.count())) <= 0) return false;
    char buffer[65536];
    const ssize_t n = ::read(output_.get(), buffer, sizeof buffer);
    if (n > 0) return said_.append(buffer, static_cast<size_t>(n)), true;
    // The end of the pipe: the process follows, or is told to.
    if (n == 0) ::poll(nullptr, 0, static_cast<int>(look_around.count()));
    return false;
  }
  void forget_output() {
    char buffer[65536];
    while (::read(output_.get(), buffer, sizeof buffer) > 0) {
    }
  }

  base::Fd input_, output_;
  pid_t pid_ = -1;
  std::string said_, why_not_;
  size_t looked_at_ = 0;
};

}  // namespace

// ---- the worker --------------------------------------------------------------------------------

struct EJK_HIDDEN Worker::State {
  explicit State(WorkerOptions given) : options(std::move(given)) {
    options.on_warning = base::warnings_to(std::move(options.on_warning));
  }

  WorkerOptions options;
  std::unique_ptr<Process> process;
  std::string device;
  int64_t number = 0;  // of the process, as it says itself
  bool told_to_stop = false;
  bool busy = false;    // with a request that is not answered yet
  uint64_t asked = 0;   // requests, of all processes
  std::string refusal;  // why there is no use in starting it again

  bool stopped() const { return options.stop != nullptr && options.stop->load(); }

  // Its next answer; nullopt once it has ended or the deadline has passed. Throws Rubbish.
  template <class Meanwhile>
  std::optional<Value> listen(const SteadyClock::time_point& deadline, Meanwhile meanwhile) {
    for (;;) {
      const bool over = process->has_ended() || SteadyClock::now() >= deadline;
      const auto line = process->line();
      if (!line && process->talks_without_end()) throw Rubbish{process->said()};
      if (line) return detail::answer_in(*line);
      if (over) return std::nullopt;
      meanwhile();
    }
  }

  // How the process ended, which it has then.
  std::string end(const std::string& otherwise) {
    std::string how = process->end();
    process.reset();
    return how.empty() ? otherwise : how;
  }
  std::string end(const Rubbish& rubbish) {
    process->end(), process.reset();
    return "printed something that is not an answer: " + quoted(rubbish.line);
  }

  [[noreturn]] void refuse(const std::string& why) {
    process.reset();
    refusal = fmt::format("the worker \"{}\" {}", fmt::join(options.command, " "), why);
    throw Error(ErrorKind::invalid_argument, refusal);
  }

  void stop_if_told() {
    if (!stopped()) return;
    process->end(), process.reset();
    throw Error(ErrorKind::no_configuration, "it was stopped before its worker was ready");
  }

  // `call`: the call that waits, for progress; nullptr: none.
  void start(const RecordedCall* call) {
    // One that was told to stop ends by itself, one that died meanwhile had nothing to do.
    const bool of_no_use = std::exchange(told_to_stop, false) || std::exchange(busy, false);
    // What it said since its last answer would be taken for the next one.
    if (process && (of_no_use || process->has_ended() || process->said_more())) process.reset();
    if (process) return;
    if (!refusal.empty()) throw Error(ErrorKind::invalid_argument, refusal);
    if (options.command.empty()) refuse("has no command");
    process = std::make_unique<Process>(options.command);
    if (!process->why_not().empty()) {
      const std::string why = process->why_not();
      refuse("cannot be used: " + why);
    }
    std::optional<Value> answer;
    try {
      const auto begun = SteadyClock::now();
      answer = listen(after(options.patience_seconds), [&] {
        stop_if_told();
        if (call == nullptr || SteadyClock::now() - begun < 2 * silence) return;
        TuneProgress p;
        p.message = "waiting for the worker to get ready";
        p.elapsed = std::chrono::duration<double>(SteadyClock::now() - begun).count();
        tell(*call, p);
      });
    } catch (const Rubbish& rubbish) {
      refuse(end(rubbish));
    }
    if (!answer)
      refuse(end(fmt::format("was killed after {:g} s", options.patience_seconds)) +
             " before it was ready");
    if (event_in(*answer) == WorkerEvent::refused)
      refuse("refused: " + text_in(*answer, "message"));
    if (event_in(*answer) != WorkerEvent::ready || count_in(*answer, "protocol") != worker_protocol)
      refuse(fmt::format("does not speak protocol {}: it said {}", worker_protocol,
                         quoted(to_json(*answer))));
    // It would ignore the member, and measure configs of all classes.
    if (options.numerics != Numerics::any && !detail::understands(*answer, detail::numerics_member))
      refuse(
          "cannot tune with numerics = same: its \"understands\" does not name numerics; use a "
          "newer worker");
    device = text_in(*answer, "device");
    number = static_cast<int64_t>(count_in(*answer, "process"));
  }

  std::string request(const RecordedCall& call, double budget_seconds) const {
    return to_json(detail::request_to_document({asked, call, options.store, budget_seconds,
                                                options.validate_backward, options.numerics,
                                                options.retune, options.plugins})) +
           "\n";
  }

  // The entry, or nothing and how the worker was lost. Throws what the worker reports.
  std::optional<Entry> ask(const RecordedCall& call, double budget_seconds, std::string& lost) {
    start(&call);
    ++asked;
    const std::string text = request(call, budget_seconds);
    std::string_view unsent = text;
    const double seconds = budget_seconds + options.patience_seconds;
    auto deadline = after(seconds);
    const auto begun = SteadyClock::now();
    auto heard = begun;
    busy = true;
    process->send(unsent);
    const auto meanwhile = [&] {
      if (!unsent.empty()) process->send(unsent);
      if (stopped() && !std::exchange(told_to_stop, true)) {
        process->interrupt();
        deadline = std::min(deadline, after(options.patience_seconds));
      }
      if (SteadyClock::now() - heard < silence) return;
      TuneProgress p;
      p.elapsed = std::chrono::duration<double>(SteadyClock::now() - begun).count();
      p.remaining = std::max(0., budget_seconds - p.elapsed);
      tell(call, p);
    };
    try {
      for (;;) {
        const std::optional<Value> answer = listen(deadline, meanwhile);
        const auto event = answer && is_for_this(*answer) ? event_in(*answer) : std::nullopt;
        busy = event != WorkerEvent::failed && event != WorkerEvent::tuned;
        if (event == WorkerEvent::failed) detail::throw_failure(*answer);
        if (event == WorkerEvent::tuned)
          return detail::entry_in(*answer, call, options.validate_backward, options.numerics);
        if (event == WorkerEvent::progress)
          tell(call, detail::progress_in(*answer)), heard = SteadyClock::now();
        if (!answer || SteadyClock::now() >= deadline) {
          lost = end(told_to_stop
                         ? "did not stop when it was told to, and was killed"
                         : fmt::format("did not answer within {:g} s and was killed", seconds));
          return std::nullopt;
        }
        meanwhile();  // one that talks without a pause must hear, too
      }
    } catch (const Rubbish& rubbish) {
      lost = end(rubbish);
      return std::nullopt;
    }
  }

  // An answer that says nothing of requests is taken for one to the last.
  bool is_for_this(const Value& answer) const {
    const Value* request = answer.find("request");
    return request == nullptr || *request == Value(asked);
  }

  void tell(const RecordedCall& call, TuneProgress p) {
    if (!options.on_progress) return;
    p.op = call.id.op, p.key = call.id.key;
    options.on_progress(p);
  }

  std::optional<Value> left_running() const {
    const bool near = options.store.empty() || detail::postgres::is_database_url(options.store);
    const std::string store = near ? default_store_path() : options.store;
    return store.empty() ? std::nullopt : detail::left_running(store, number);
  }
};

Worker::Worker(WorkerOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Worker::~Worker() = default;

std::string Worker::device() {
  state_->start(nullptr);
  return state_->device;
}

Entry Worker::tune(const RecordedCall& call, double budget_seconds) {
  for (int attempt = 1;; ++attempt) {
    std::string lost;
    if (auto entry = state_->ask(call, budget_seconds, lost)) return std::move(*entry);
    std::string message = "[" + call.id.op + "] its worker process " + lost;
    const auto running = state_->left_running();
    if (running) message += " while it ran " + stable_json(*running);
    if (attempt > 1) message += fmt::format(" (attempt {})", attempt);
    if (!running || attempt == max_attempts || state_->stopped()) throw WorkerLost(message);
    state_->options.on_warning(message + "; a fresh one goes on");
  }
}

}  // namespace ejk
