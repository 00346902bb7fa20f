// SPDX-License-Identifier: Apache-2.0
// The host's side of a guarded child: starts it, waits with a deadline, finds out how it ended.
#include "guard/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/process.h"
#include "guard/descendants.h"
#include "guard/shared_page.h"
#include "guard/stillness.h"
#include "platform/zygote.h"

namespace ejk::detail {
namespace {

using base::duration_of;
using base::page_size;
using base::retry_interrupted;
using base::signal_name;
constexpr int no_status = -1;  // a host that ignores SIGCHLD, or reaps by itself, took it
constexpr std::chrono::seconds start_deadline{10};
// Of its time a child must have computed to be called endless; else it waited, perhaps only for
// the processor.
constexpr double busy = 0.7;
constexpr double idle = 0.05;
constexpr size_t max_last_words = 4096;
constexpr double never = 1e9;  // seconds

std::string error_text(std::string_view step) {
  return fmt::format("cannot {}: {}", step, std::strerror(errno));
}

bool is_fatal(int signal) {
  return std::ranges::find(fatal_signals, signal) != std::end(fatal_signals);
}

// The child gives the numbers 0, 1 and 2 to other files.
base::Fd above_standard(int fd) {
  base::Fd given(fd);
  if (fd < 0 || fd > STDERR_FILENO) return given;
  return base::Fd(::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

bool make_pipe(base::Fd& reader, base::Fd& writer, int flags = 0) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) return false;
  reader = above_standard(ends[0]), writer = above_standard(ends[1]);
  return reader.valid() && writer.valid();
}

// Nothing of the host may run in the child: a signal that arrives before the child has put the
// host's handlers away waits until then.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsHeldBack() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
};

JobReport unknown(std::string why) { return {{Rejection::unknown, std::move(why)}, true}; }

// The number in a small file; 0 if there is none.
uint64_t number_in(const char* path, std::string_view after = "") {
  const std::string text = base::read_file(path, 1 << 16).text;
  const size_t at = text.find(after);
  if (at == text.npos) return 0;
  return std::strtoull(text.c_str() + at + after.size(), nullptr, 10);
}

}  // namespace

uint64_t default_memory_limit() {
  constexpr uint64_t gib = uint64_t{1} << 30, mib = uint64_t{1} << 20;
  uint64_t machine = number_in("/proc/meminfo", "MemAvailable:") * 1024;
  for (const char* cgroup :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    if (const uint64_t most = number_in(cgroup); most != 0) machine = std::min(machine, most);
  // Addresses are what can be limited, and a thread takes many that it never uses: its stack and
  // an arena for its allocations.
  rlimit stack{};
  const bool known = ::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY;
  const uint64_t per_thread = (known ? stack.rlim_cur : 8 * mib) + 128 * mib;
  return std::max(gib, machine / 2) +
         uint64_t{2} * std::thread::hardware_concurrency() * per_thread;
}

// ---- starting ----------------------------------------------------------------------------------

GuardChild::GuardChild(Trial& trial, Stopwatch& stopwatch, std::span<const Job> jobs,
                       const GuardLimits& limits, const std::function<bool()>& enough)
    : trial_(trial), enough_(enough) {
  if (limits.use_cgroup) cgroup_.emplace();
  if (open_channels() && fork_here(trial, stopwatch, jobs, limits.memory_bytes))
    wait_until_ready(start_deadline);
}

GuardChild::GuardChild(Trial& trial, const base::Fd& parcel, Purpose purpose,
                       const GuardLimits& limits, const std::function<bool()>& enough)
    : trial_(trial), enough_(enough), is_worker_(true) {
  if (purpose == Purpose::compiles) between_looks_ = std::chrono::milliseconds(5);
  if (limits.use_cgroup) cgroup_.emplace();
  if (open_channels() && start_worker(parcel, purpose))
    wait_until_ready(duration_of(limits.own_seconds));
}

bool GuardChild::open_channels() {
  outputs_ = above_standard(static_cast<int>(::memfd_create("ejk-outputs", MFD_CLOEXEC)));
  if (!is_worker_) board_pages_ = map_board(-1);
  else {
    board_file_ = above_standard(static_cast<int>(::memfd_create("ejk-board", MFD_CLOEXEC)));
    const std::string page(page_size(), '\0');
    if (board_file_.valid() && !base::write_at(board_file_, page, 0, "the board of a worker"))
      board_pages_ = map_board(board_file_.get());
  }
  if (board_pages_ != nullptr) board_ = new (board_in(board_pages_)) Board{};
  const bool open = board_ != nullptr && outputs_.valid() && make_pipe(childs_orders_, orders_) &&
                    make_pipe(events_, childs_events_) && make_pipe(stderr_, childs_stderr_);
  if (!open) why_not_started_ = error_text("set up a child process");
  // The host never waits in a read; the child may wait in a write, and its stderr is drained.
  for (const base::Fd* fd : {&events_, &stderr_})
    if (open) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  return open;
}

bool GuardChild::fork_here(Trial& trial, Stopwatch& stopwatch, std::span<const Job> jobs,
                           uint64_t memory_bytes) {
  host_has_threads_ = base::list_directory("/proc/self/task").size() > 1;
  const ChildEnds ends{childs_orders_.get(), childs_events_.get(), childs_stderr_.get(),
                       outputs_.get()};
  const pid_t host = ::getpid();
  const SignalsHeldBack held_back;
  pid_ = ::fork();
  if (pid_ == 0)
    live_as_child(
        [&] {
          return ChildWork{&trial, &stopwatch, jobs};
        },
        *board_, ends, memory_bytes, {host, held_back.before()});
  if (pid_ < 0) {
    why_not_started_ = error_text("start a child process");
    return false;
  }
  ::setpgid(pid_, pid_);  // here too: it may be ended before it has done so
  if (cgroup_) cgroup_->add(pid_);
  pidfd_ = base::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  return true;
}

bool GuardChild::start_worker(const base::Fd& parcel, Purpose purpose) {
  const int files[] = {childs_orders_.get(), childs_events_.get(), childs_stderr_.get(),
                       outputs_.get(),       board_file_.get(),    parcel.get()};
  const auto worker =
      detail::start_worker(purpose == Purpose::runs ? live_as_worker : live_as_compiler, files);
  why_not_started_ = worker.why();
  if (!worker) return false;
  pid_ = *worker;
  if (cgroup_) cgroup_->add(pid_);
  // Only the zygote reaps it, and only when told to: until then its number is not given away.
  pidfd_ = base::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (pidfd_.valid()) return true;
  why_not_started_ = error_text("watch a worker");
  kill_group(), reap();
  return false;
}

void GuardChild::wait_until_ready(Clock::duration patience) {
  const auto is = [&](Board::Phase phase) { return told_ == static_cast<char>(phase); };
  const bool told = wait(Clock::now() + patience) == Event::told;
  if (told && is(Board::Phase::waiting)) return;
  const std::string why = told && is(Board::Phase::refused) ? words_on_board() : "";
  kill_group(), reap();
  why_not_started_ =
      why.empty() ? with_last_words("a child process was started but did not get ready") : why;
}

// ---- ending ------------------------------------------------------------------------------------

// Leaves it to be reaped. False if there is none, or someone else took it.
bool GuardChild::look(siginfo_t& info) const {
  if (is_worker_ && pid_ >= 0) {
    pollfd end{pidfd_.get(), POLLIN, 0};
    const bool ended = pidfd_.valid() && ::poll(&end, 1, 0) == 1;
    info.si_pid = ended ? pid_ : 0;
    return true;
  }
  return pid_ >= 0 &&
         retry_interrupted([&] {
           return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
         }) == 0;
}

bool GuardChild::alive() const {
  siginfo_t info{};
  return look(info) && info.si_pid == 0;
}

// Its number is not given to another process until it is reaped.
void GuardChild::kill_group() {
  siginfo_t info{};
  if (!look(info)) return;
  if (!cgroup_ || !cgroup_->end_all()) end_descendants(pid_);  // also those that left its group
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
}

int GuardChild::reap() {
  int status = 0;
  if (pid_ < 0) return no_status;
  if (is_worker_) return reap_worker(std::exchange(pid_, -1));
  const pid_t got = retry_interrupted([&] { return ::waitpid(pid_, &status, 0); });
  const bool ours = got == std::exchange(pid_, -1);
  return ours ? status : no_status;
}

GuardChild::~GuardChild() {
  kill_group();
  reap();
  if (board_pages_ != nullptr) unmap_board(board_pages_);
}

// ---- waiting -----------------------------------------------------------------------------------

// The child's stderr goes through a pipe and not into a file, because it has no limit.
void GuardChild::drain_stderr() {
  char buffer[4096];
  for (int i = 0; i < 256; ++i) {
    const ssize_t n =
        retry_interrupted([&] { return ::read(stderr_.get(), buffer, sizeof buffer); });
    if (n <= 0) return;
    last_words_.append(buffer, static_cast<size_t>(n));
    if (last_words_.size() > max_last_words)
      last_words_.erase(0, last_words_.size() - max_last_words);
  }
}

// An end of a pipe does not show whether a child is dead: another thread's child may hold copies of
// them.
GuardChild::Event GuardChild::wait(Clock::time_point deadline) {
  using std::chrono::milliseconds;
  for (;;) {
    const bool dead = !alive();  // before the look at its events: they may be its last ones
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    // Looks around by itself now and then, more often if no descriptor tells of its death.
    const auto most = !pidfd_.valid() ? milliseconds(20)
                      : enough_       ? between_looks_
                                      : milliseconds(10'000);
    pollfd fds[] = {
        {events_.get(), POLLIN, 0}, {stderr_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
    const auto patience = dead ? milliseconds(0) : std::clamp(left, milliseconds(0), most);
    ::poll(fds, std::size(fds), static_cast<int>(patience.count()));
    drain_stderr();
    if (retry_interrupted([&] { return ::read(events_.get(), &told_, 1); }) == 1)
      return Event::told;
    if (dead) return Event::ended;
    if (Clock::now() >= deadline && alive()) return Event::late;
    if (enough_ && enough_()) return Event::given_up;
  }
}

double GuardChild::cpu_seconds() const {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// ---- one job -----------------------------------------------------------------------------------

// The clocks of a run: its own begin with it, not with the reset before it.
struct GuardChild::Watch {
  Clock::time_point begin, deadline, idle_check, still_check;
  Clock::time_point moved = begin;  // when it was last seen to move
  Clock::duration idle, still, own;
  Stillness stillness;
  bool is_still = false;
  double cpu_at_begin = 0, cpu_at_check = 0;
  std::optional<Clock::time_point> build_begin;
  Clock::duration building{};  // so far
  // A driver may leave half of its compiler's work to the first launch.
  static constexpr int launch_over_build = 4;

  // Until it is told to run, only what is not its doing can take long.
  Watch(Clock::time_point now, const Patience& patience, pid_t child)
      : begin(now),
        idle(duration_of(patience.idle)),
        still(duration_of(patience.still)),
        own(duration_of(patience.own)),
        stillness(child) {
    wait_for_host(now);
  }
  void wait_for_host(Clock::time_point now) { deadline = idle_check = still_check = now + own; }
  void start_build(Clock::time_point now) { build_begin = begin = now; }
  void start_run(Clock::time_point now, double deadline_seconds, double cpu) {
    if (build_begin) building += now - *std::exchange(build_begin, std::nullopt);
    begin = moved = now;
    deadline = now + duration_of(deadline_seconds) + launch_over_build * building;
    idle_check = now + idle;
    cpu_at_begin = cpu_at_check = cpu;
    look_again(now);
  }
  void look_again(Clock::time_point now) { still_check = now + still / looks; }
  Clock::time_point next() const { return std::min({deadline, idle_check, still_check}); }

  static constexpr int looks = 4;  // at its threads, while it is still
};

bool GuardChild::late_already(Watch& watch) const {
  const auto now = Clock::now();
  if (now >= watch.deadline) return true;
  if (now >= watch.still_check) {
    if (!watch.stillness.look()) watch.moved = now;
    watch.is_still = now - watch.moved >= watch.still;
    watch.look_again(now);
    if (watch.is_still) return true;
  }
  if (now < watch.idle_check) return false;
  const double cpu = cpu_seconds(), before = std::exchange(watch.cpu_at_check, cpu);
  watch.idle_check = now + watch.idle;
  return cpu - before < idle * std::chrono::duration<double>(watch.idle).count();
}

// A worker is told the config, a fork has it.
bool GuardChild::tell(size_t job, Job config) {
  const bool in_words = is_worker_ && config != nullptr;
  const std::string text = in_words ? to_json(config->to_value()) : "";
  const Order order{static_cast<uint32_t>(job), static_cast<uint32_t>(text.size())};
  std::string all(reinterpret_cast<const char*>(&order), sizeof order);
  all += text;
  const ssize_t n =
      retry_interrupted([&] { return ::write(orders_.get(), all.data(), all.size()); });
  return n == static_cast<ssize_t>(all.size());
}

JobReport GuardChild::run(size_t job, Job config, const Patience& patience) {
  if (!alive()) return unknown(why_not_started_.empty() ? "its child was lost" : why_not_started_);
  last_words_.clear();
  if (!tell(job, config)) return unknown(error_text("tell a child what to do"));
  Watch watch(Clock::now(), patience, pid_);
  // The CPU's time does not tell what a device does.
  if (!host_has_threads_) watch.still = duration_of(never);
  if (is_worker_) watch.idle = duration_of(never);
  for (;;) {
    const Event event = wait(watch.next());
    if (event == Event::ended) return ended();
    if (event == Event::given_up) {
      kill_group(), reap();
      return {{Rejection::unknown, "the tuning ended before it did"}};
    }
    if (event == Event::late && late_already(watch)) return late(watch);
    if (event == Event::late) continue;
    if (told_ == Board::dying) return ended();
    const auto now = Clock::now();
    watch.wait_for_host(now);
    if (told_ == static_cast<char>(Board::Phase::finished)) return told(job);
    if (told_ == static_cast<char>(Board::Phase::building)) watch.start_build(now);
    if (told_ == static_cast<char>(Board::Phase::running))
      watch.start_run(now, patience.deadline, cpu_seconds());
  }
}

std::string GuardChild::words_on_board() const {
  board_->why[sizeof board_->why - 1] = 0;
  return board_->why;
}

JobReport GuardChild::told(size_t job) {
  JobReport report;
  Finding& f = report.finding;
  const std::string why = words_on_board();
  const auto rejected = [&](Rejection kind, std::string reason) {
    f.rejection = kind, f.why = std::move(reason);
    return report;
  };
  f.seconds = 1e-9 * static_cast<double>(board_->nanoseconds.load());
  f.spills = board_->spilled_bytes > 0;
  f.compile_seconds = 1e-9 * static_cast<double>(board_->compile_nanoseconds.load());
  ++jobs_done_;
  if (board_->job != job) return unknown("the candidate overwrote the sandbox's status page");
  switch (board_->verdict.load()) {
    case Board::Verdict::passed:
      report.has_reference = true;
      if (!take_outputs(f.outputs)) return unknown("the child's outputs cannot be read");
      f.rejection.reset();
      return report;
    case Board::Verdict::lacked_resources:
      report.may_be_ours = true;
      [[fallthrough]];
    case Board::Verdict::threw:
      return rejected(Rejection::threw, why);
    case Board::Verdict::device_failed: {
      const Rejection kind = rejection_of(board_->device_error);
      const bool lost = kind == Rejection::crashed, hungry = kind == Rejection::out_of_memory;
      if (lost) kill_group(), reap();  // nothing can run there any more
      report.may_be_ours = lost || hungry, report.needs_control = hungry;
      return rejected(kind, why);
    }
    case Board::Verdict::out_of_memory:
      report.may_be_ours = report.needs_control = true;
      return rejected(Rejection::out_of_memory, "ran out of memory: " + why);
    case Board::Verdict::out_of_bounds:
      kill_group(), reap();  // it may have written more
      return rejected(Rejection::out_of_bounds, why);
    case Board::Verdict::changed_host:
      kill_group(), reap();  // not everything can be put back
      return rejected(Rejection::changed_host, why);
    case Board::Verdict::no_reference:
      f.rejection.reset();
      return report;
    case Board::Verdict::not_reported:
      return unknown("its outputs could not be handed over: " + why);
    case Board::Verdict::none:
      break;
  }
  return unknown("the candidate overwrote the sandbox's status page");
}

bool GuardChild::take_outputs(std::vector<OutputBytes>& outputs) const {
  const auto size = static_cast<uint64_t>(std::max<off_t>(0, ::lseek(outputs_.get(), 0, SEEK_END)));
  const uint64_t count = board_->outputs;
  if (board_->outputs_bytes != size || count > size / sizeof(OutputHeader)) return false;
  uint64_t at = 0;
  const auto take = [&](void* to, uint64_t bytes) {
    for (auto* p = static_cast<char*>(to); bytes > 0;) {
      const ssize_t n = retry_interrupted(
          [&] { return ::pread(outputs_.get(), p, bytes, static_cast<off_t>(at)); });
      if (n <= 0) return false;
      p += n, at += static_cast<uint64_t>(n), bytes -= static_cast<uint64_t>(n);
    }
    return true;
  };
  for (uint64_t i = 0; i < count; ++i) {
    OutputHeader header{};
    if (!take(&header, sizeof header) || header.bytes > size - at) return false;
    outputs.push_back({static_cast<DType>(header.dtype), std::vector<std::byte>(header.bytes)});
    if (!take(outputs.back().bytes.data(), header.bytes)) return false;
  }
  return at == size;
}

JobReport GuardChild::late(const Watch& watch) {
  const double seconds = std::chrono::duration<double>(Clock::now() - watch.begin).count();
  const double cpu_used = cpu_seconds() - watch.cpu_at_begin;
  const Board::Phase phase = board_->phase;
  kill_group(), reap();
  JobReport report;
  if (phase == Board::Phase::building)
    return {{Rejection::timed_out, fmt::format("was compiled for more than {:.0f} s", seconds)}};
  if (phase != Board::Phase::running) {
    report = unknown("the child process hung before or after the run");
    report.hung = true;
    return report;
  }
  Finding& f = report.finding;
  report.waited = !is_worker_ && (watch.is_still || cpu_used < idle * seconds);
  if (report.waited && host_has_threads_) {
    // Threads of the host, such as a pool's workers, do not exist in a child.
    f.rejection.reset(), f.waited = true;
    f.why = fmt::format(
        "waited for {:.1f} s in a child process, perhaps for threads that only exist outside",
        seconds);
    return report;
  }
  f.rejection = Rejection::timed_out, f.seconds = seconds;
  f.why = with_last_words(fmt::format("ran longer than {:.1f} s", seconds));
  report.may_be_ours = cpu_used < busy * seconds, report.needs_control = true;
  return report;
}

JobReport GuardChild::ended() {
  const Board::Phase phase = board_->phase;
  kill_group();  // what it started
  const int status = reap();
  // One that closed all files cannot tell.
  const bool untold = board_->verdict == Board::Verdict::changed_host;
  if (phase == Board::Phase::finished && untold) return told(board_->job);
  if (phase != Board::Phase::building && phase != Board::Phase::running &&
      phase != Board::Phase::reporting)
    return unknown("the child process ended before or after the run");
  int signal = board_->signal;
  const bool told_why = signal != 0 || board_->exit != Board::Exit::none;  // then it was ended here
  if (!told_why && status != no_status && WIFSIGNALED(status)) signal = WTERMSIG(status);
  return signal != 0 ? died_of(signal) : exited(status);
}

JobReport GuardChild::died_of(int signal) const {
  if (board_->signal_from_outside || !is_fatal(signal))
    return unknown("was killed by " + signal_name(signal));
  const void* at = board_->fault_address;
  if (const auto what = at == nullptr ? std::nullopt : trial_.trespass(at))
    return {{Rejection::out_of_bounds, *what, true}, true};
  if (board_->starved) {
    const std::string why = "ran out of memory, then " + signal_name(signal);
    return {{Rejection::out_of_memory, with_last_words(why)}, true, true};
  }
  return {{Rejection::crashed, with_last_words(signal_name(signal)), true}, true};
}

JobReport GuardChild::exited(int status) const {
  const auto finding = [&](std::string why, bool needs_control = false) -> JobReport {
    return {{Rejection::exited, with_last_words(std::move(why))}, true, needs_control};
  };
  const Board::Exit how = board_->exit;
  if (how == Board::Exit::exit)
    return finding(fmt::format("called exit({})", board_->exit_status.load()));
  if (how == Board::Exit::quick_exit) return finding("called quick_exit");
  if (how == Board::Exit::thread) return finding("ended its thread");
  if (status == no_status) return finding("ended its process without a trace", true);
  return finding(fmt::format("called _exit({})", WEXITSTATUS(status)));
}

// The last line that it wrote to stderr often says more than a signal.
std::string GuardChild::with_last_words(std::string why) const {
  constexpr size_t most = 200;
  const size_t end = last_words_.find_last_not_of(" \t\r\n");
  if (end == last_words_.npos) return why;
  const size_t before = last_words_.rfind('\n', end);
  std::string line = last_words_.substr(before == last_words_.npos ? 0 : before + 1);
  line.resize(std::min({line.size(), most, line.find_last_not_of(" \t\r\n") + 1}));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return why + " (" + line + ")";
}

}  // namespace ejk::detail
