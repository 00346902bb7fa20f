// SPDX-License-Identifier: Apache-2.0
// The queue of calls that wait for their tuning, and the thread that has it done.
#include "choose/background.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "base/thrown.h"
#include "base/time.h"

namespace ejk::detail {

// ---- forks -------------------------------------------------------------------------------------

namespace {

thread_local bool holds_gate = false;
thread_local bool is_tuning = false;  // in `idle`: a kernel may call it again

// A thread that holds it may fork, too.
struct ForkGate {
  std::mutex mutex;
  static ForkGate& only() {
    static auto* const gate = new ForkGate;
    return *gate;
  }

 private:
  ForkGate() {
    ::pthread_atfork(
        [] {
          if (!holds_gate) only().mutex.lock();
        },
        [] {
          if (!holds_gate) only().mutex.unlock();
        },
        [] {
          holds_gate = false;
          only().mutex.unlock();
        });
  }
};

}  // namespace

WhileNobodyForks::WhileNobodyForks() {
  ForkGate::only().mutex.lock();
  holds_gate = true;
}
WhileNobodyForks::~WhileNobodyForks() {
  if (std::exchange(holds_gate, false)) ForkGate::only().mutex.unlock();
}

WhileOthersMayFork::WhileOthersMayFork() : held_(std::exchange(holds_gate, false)) {
  if (held_) ForkGate::only().mutex.unlock();
}
WhileOthersMayFork::~WhileOthersMayFork() {
  if (!held_) return;
  ForkGate::only().mutex.lock();
  holds_gate = true;
}

// ---- the queue ---------------------------------------------------------------------------------

namespace {

constexpr double first_turn = 0.5;  // seconds

// Nothing was measured for it yet.
bool has_a_guess(const LaterCall& later) { return !later.so_far && !later.replaces; }

bool may_be_tuned(Background::Place place, const LaterCall& later) {
  const bool forks = later.policy.guard && later.inv.device->platform == Platform::cpu;
  return place == Background::Place::here || (forks && later.policy.background_share > 0);
}

}  // namespace

struct Background::State {
  State(Work what, std::function<bool()> busy, size_t max_known)
      : work(std::move(what)),
        was_here(max_known),
        is_busy([ask = busy_question(std::move(busy))] { return ask(MachineLoad::recently); }) {}

  const Work work;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<LaterCall> waiting;
  bool is_on = false;           // one of them is being tuned
  std::set<std::string> queue;  // ids of those that wait, and of the one that is being tuned
  RecentMap<bool> was_here;     // ids of calls that do not come again
  size_t bytes = 0;             // of the copies
  size_t idlers = 0;            // threads in `idle`: the thread gives way to them
  bool ends = false;
  base::Fd give_way{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::function<bool()> is_busy;
  std::thread thread;

  // The first that may be tuned there now, of those first that run with a guess.
  std::deque<LaterCall>::iterator next(Place place) {
    const auto may = [=](const LaterCall& later) { return may_be_tuned(place, later); };
    const auto guessed = std::ranges::find_if(
        waiting, [&](const LaterCall& later) { return has_a_guess(later) && may(later); });
    return guessed != waiting.end() ? guessed : std::ranges::find_if(waiting, may);
  }

  // Of tuning, in a process. At a small share of a core a whole tuning may take minutes, and most
  // of what it gains is known soon: as long as others wait, each call gets a short turn first.
  double seconds_of(const LaterCall& later) const {
    const double all = later.policy.budget_seconds;
    const auto count = std::ranges::count_if(
        waiting, [](const LaterCall& each) { return may_be_tuned(Place::process, each); });
    return has_a_guess(later) && count > 1 ? std::min(all, first_turn) : all;
  }

  // Tunes one and puts it back if it must wait again. Unlocks meanwhile.
  void tune(std::unique_lock<std::mutex>& lock, std::deque<LaterCall>::iterator which,
            const Turn& turn) {
    LaterCall later = std::move(*which);
    waiting.erase(which);
    is_on = true;
    lock.unlock();
    is_tuning = true;
    End end = End::done;
    try {
      end = work.tune(later, turn);
    } catch (...) {
      static_cast<void>(base::what_was_thrown());  // nothing of it may end the program
    }
    is_tuning = false;
    lock.lock();
    is_on = false;
    changed.notify_all();
    if (end == End::gave_way) return waiting.push_front(std::move(later));
    if (end == End::later) return waiting.push_back(std::move(later));
    bytes -= later.kept->bytes();
    queue.erase(text_of(later.id));
    was_here.insert_or_assign(text_of(later.id), true);
    lock.unlock();
    { const LaterCall tuned = std::move(later); }  // frees the copies without the lock
    lock.lock();
  }
};

Background::Background(Work work, std::function<bool()> is_busy, size_t max_known)
    : state_(new State(std::move(work), std::move(is_busy), max_known)) {}

Background::~Background() {
  if (!is_mine()) return;  // nothing is freed
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
    ::eventfd_write(state_->give_way.get(), 1);
    state_->changed.notify_all();
  }
  if (state_->thread.joinable()) state_->thread.join();
  for (const LaterCall& later : state_->waiting) try {
      state_->work.leave(later);
    } catch (...) {
      static_cast<void>(base::what_was_thrown());
    }
  delete state_;
}

bool Background::knows(const std::string& id) const {
  if (!is_mine()) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->queue.contains(id) || state_->was_here.find(id) != nullptr;
}

bool Background::waits(const std::string& id) const {
  if (!is_mine()) return true;  // it waits in another process
  const std::lock_guard lock(state_->mutex);
  return state_->queue.contains(id);
}

std::optional<size_t> Background::room(const AutotunePolicy& policy) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->queue.size() >= max_calls) return std::nullopt;
  const auto most = static_cast<size_t>(std::max<int64_t>(0, policy.background_bytes));
  return most - std::min(most, state_->bytes);
}

void Background::note(const std::string& id) {
  const std::lock_guard lock(state_->mutex);
  state_->was_here.insert_or_assign(id, true);
}

void Background::add(LaterCall later) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->queue.insert(text_of(later.id)).second) return;  // another thread was faster
  state_->bytes += later.kept->bytes();
  state_->waiting.push_back(std::move(later));
  if (!state_->thread.joinable() && state_->give_way.valid() &&
      state_->next(Place::process) != state_->waiting.end()) {
    ForkGate::only();  // by a thread of the program, which is in no fork now
    // Signals are for the program's own threads.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    try {
      state_->thread = std::thread([state = state_] { work(*state); });
    } catch (const std::system_error&) {  // the next call tries again, and idle() needs none
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  state_->changed.notify_all();
}

// ---- who tunes ---------------------------------------------------------------------------------

void Background::work(State& state) {
  constexpr auto between_looks = std::chrono::milliseconds(250);
  std::unique_lock lock(state.mutex);
  while (!state.ends) {
    if (state.waiting.empty() || state.idlers > 0) {
      state.changed.wait(lock);
      continue;
    }
    lock.unlock();
    const bool busy = state.work.is_stopped() || state.is_busy();
    lock.lock();
    const auto next = state.next(Place::process);
    if (busy || state.ends || state.idlers > 0 || next == state.waiting.end()) {
      if (!state.ends) state.changed.wait_for(lock, between_looks);
      continue;
    }
    state.tune(lock, next,
               {.place = Place::process,
                .seconds = state.seconds_of(*next),
                .share = std::min(1., next->policy.background_share),
                .give_way = state.give_way.get(),
                .is_busy = state.is_busy});
  }
}

size_t Background::idle(double seconds) {
  if (!is_mine()) return 0;
  const double until = base::seconds_now() + seconds;
  std::unique_lock lock(state_->mutex);
  const auto left = [&] { return state_->waiting.size() + (state_->is_on ? 1 : 0); };
  if (!(seconds > 0) || left() == 0 || is_tuning) return left();
  // The tuning in a process is broken off: at its share of a core it has not got far.
  ++state_->idlers;
  ::eventfd_write(state_->give_way.get(), 1);
  for (double rest = seconds; rest > 0 && !state_->work.is_stopped();
       rest = until - base::seconds_now()) {
    if (state_->is_on) {
      state_->changed.wait_until(lock, base::Clock::now() + base::duration_of(rest));
      continue;
    }
    const auto next = state_->next(Place::here);
    if (next == state_->waiting.end()) break;
    state_->tune(
        lock, next,
        {.place = Place::here, .seconds = rest, .share = 1, .give_way = -1, .is_busy = {}});
  }
  if (--state_->idlers == 0) {
    eventfd_t given = 0;
    ::eventfd_read(state_->give_way.get(), &given);
  }
  state_->changed.notify_all();
  return left();
}

}  // namespace ejk::detail
