// SPDX-License-Identifier: Apache-2.0
#include "store/postgres/link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/warn.h"
#include "store/postgres/libpq.h"

namespace ejk::detail::postgres {
namespace {

struct Job {
  Query query;
  double deadline;
  bool done = false;
  Answer answer = {};
};

struct Repeated {
  Query query;
  double every, next;
};

std::string text_or(const char* text, const char* otherwise) {
  return text == nullptr || *text == '\0' ? otherwise : text;
}

// Too many clients, or a server that starts or recovers. Of a refusal libpq tells only the text.
bool passes(const Answer& refused) {
  return refused.trouble == Trouble::away && (refused.why.find(" 53300: ") != std::string::npos ||
                                              refused.why.find(" 57P03: ") != std::string::npos);
}

// The server is going, or has dropped this connection.
bool ends_connection(const std::string& sqlstate) {
  return sqlstate.starts_with("57P") || sqlstate.starts_with("08");
}

}  // namespace

std::string array_of(const std::vector<Field>& texts) {
  std::string out = "{";
  for (const Field& text : texts) {
    if (out.size() > 1) out += ',';
    if (!text) {
      out += "NULL";
      continue;
    }
    out += '"';
    for (const char c : *text) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    out += '"';
  }
  return out + "}";
}

double random_number() {
  std::random_device source;
  return std::uniform_real_distribution<>()(source);
}

// Everything below `mutex` is shared; the connection is the thread's.
struct Link::State {
  State(Address a, Options o)
      : address(std::move(a)),
        options(std::move(o)),
        warn(base::warnings_to(options.on_warning)),
        breaker(options.breaker, options.random),
        wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  const Address address;
  const Options options;
  const WarningSink warn;

  std::mutex mutex;
  std::condition_variable changed;
  Breaker breaker;
  std::deque<std::shared_ptr<Job>> jobs;
  std::map<uint64_t, Repeated> repeated;
  uint64_t last_id = 0;
  bool connected = false;
  bool stopping = false, ended = false;
  bool said_away = false;
  std::unique_ptr<std::thread> thread;

  const base::Fd wake;  // readable when the thread shall end
  Connection* connection = nullptr;
  double used = 0;        // when the connection was last needed
  double busy_until = 0;  // when the thread is done with its question, unless something holds it up

  double now() const { return options.now(); }

  // ---- the connection

  enum class Ready { yes, late, stopped };
  Ready wait_for(short events, double deadline) {
    for (;;) {
      const double left = deadline - now();
      if (left <= 0) return Ready::late;
      pollfd fds[] = {{libpq().PQsocket(connection), events, 0}, {wake.get(), POLLIN, 0}};
      const int limit = static_cast<int>(std::min(std::ceil(left * 1e3), 60e3));
      if (::poll(fds, 2, limit) <= 0) continue;
      if (fds[1].revents != 0) return Ready::stopped;
      if (fds[0].revents != 0) return Ready::yes;
    }
  }

  void drop() {
    if (connection != nullptr) libpq().PQfinish(std::exchange(connection, nullptr));
    const std::lock_guard lock(mutex);
    connected = false;
  }

  std::string connection_error() const {
    std::string text = text_or(libpq().PQerrorMessage(connection), "no reason was given");
    text.resize(std::min(text.size(), text.find("\nLOCATION: ")));  // in the server's sources
    for (size_t at = text.find("\n\t"); at != text.npos; at = text.find("\n\t", at))
      text.replace(at, 2, "; ");
    return address.scrubbed(std::move(text));
  }

  Answer late(const char* step, double seconds) {
    return {Trouble::timed_out,
            std::string(step) + " took longer than " + std::to_string(seconds).substr(0, 5) + " s"};
  }

  Answer connect() {
    const double deadline = now() + options.connect_seconds;
    Answer answer = open_connection(deadline);
    while (options.connect_again && passes(answer) && rest_before(deadline)) {
      drop();
      answer = open_connection(deadline);
    }
    if (answer && !options.greeting.sql.empty()) {
      answer = run(options.greeting, deadline);
      const bool heard = answer || answer.trouble == Trouble::sql;
      if (heard && options.greeted) {
        std::string problem = options.greeted(answer);
        answer = problem.empty() ? Answer{} : Answer{Trouble::refused, std::move(problem)};
      }
    }
    if (!answer) return drop(), answer;
    const std::lock_guard lock(mutex);
    connected = true;
    return answer;
  }

  // 0.1 to 0.3 s, so that those who were refused together do not come back together.
  bool rest_before(double deadline) {
    const double seconds = 0.1 + 0.2 * options.random();
    if (now() + seconds >= deadline) return false;
    pollfd stop = {wake.get(), POLLIN, 0};
    return ::poll(&stop, 1, static_cast<int>(seconds * 1e3)) <= 0;
  }

  Answer open_connection(double deadline) {
    const Libpq& pq = libpq();
    if (!pq.why_not.empty()) return {Trouble::away, pq.why_not};
    std::vector<const char*> names, values;
    for (const auto& [name, value] : address.parameters)
      names.push_back(name.c_str()), values.push_back(value.c_str());
    for (const auto& [name, value] :
         {std::pair{"client_encoding", "UTF8"}, std::pair{"fallback_application_name", "ejk"}})
      names.push_back(name), values.push_back(value);
    names.push_back(nullptr), values.push_back(nullptr);
    connection = pq.PQconnectStartParams(names.data(), values.data(), 0);
    if (connection == nullptr) return {Trouble::away, "out of memory"};
    pq.PQsetErrorVerbosity(connection, errors_verbose);  // with their codes
    pq.PQsetNoticeProcessor(
        connection, [](void*, const char*) {}, nullptr);
    if (pq.PQstatus(connection) == connection_bad) return {Trouble::away, connection_error()};
    for (int step = polling_writing; step != polling_ok; step = pq.PQconnectPoll(connection)) {
      if (step == polling_failed) return {Trouble::away, connection_error()};
      if (wait_for(step == polling_reading ? POLLIN : POLLOUT, deadline) != Ready::yes)
        return late("connecting", options.connect_seconds);
    }
    pq.PQsetnonblocking(connection, 1);
    return {};
  }

  // ---- queries

  bool send(const Query& query) {
    const Libpq& pq = libpq();
    if (query.is_script) return pq.PQsendQuery(connection, query.sql.c_str()) == 1;
    std::vector<const char*> values;
    for (const Field& field : query.parameters) values.push_back(field ? field->c_str() : nullptr);
    return pq.PQsendQueryParams(connection, query.sql.c_str(), static_cast<int>(values.size()),
                                nullptr, values.data(), nullptr, nullptr, 0) == 1;
  }

  // Away: the connection was lost. It stays open only if the server has answered.
  Answer run(const Query& query, double deadline) {
    const Libpq& pq = libpq();
    const auto lost = [&] { return Answer{Trouble::away, connection_error()}; };
    if (!send(query)) return lost();
    for (int more = pq.PQflush(connection); more != 0; more = pq.PQflush(connection)) {
      if (more < 0) return lost();
      if (wait_for(POLLIN | POLLOUT, deadline) != Ready::yes) return late("a query", query.seconds);
      if (pq.PQconsumeInput(connection) == 0) return lost();
    }
    Answer answer;
    for (;;) {
      while (pq.PQisBusy(connection) != 0) {
        if (wait_for(POLLIN, deadline) != Ready::yes) return late("a query", query.seconds);
        if (pq.PQconsumeInput(connection) == 0) return lost();
      }
      Result* const result = pq.PQgetResult(connection);
      if (result == nullptr) break;
      if (answer) read(result, answer);
      pq.PQclear(result);
    }
    return answer;
  }

  void read(const Result* result, Answer& into) const {
    const Libpq& pq = libpq();
    const int status = pq.PQresultStatus(result);
    if (status != command_ok && status != tuples_ok) {
      into.sqlstate = text_or(pq.PQresultErrorField(result, field_sqlstate), "");
      into.why = address.scrubbed(
          text_or(pq.PQresultErrorField(result, field_message), "the connection was lost"));
      const bool gone = into.sqlstate.empty() || ends_connection(into.sqlstate);
      into.trouble = gone ? Trouble::away : Trouble::sql;
      return;
    }
    const int columns = pq.PQnfields(result);
    for (int r = 0; r < pq.PQntuples(result); ++r) {
      Row& row = into.rows.emplace_back(static_cast<size_t>(columns));
      for (int c = 0; c < columns; ++c)
        if (pq.PQgetisnull(result, r, c) == 0)
          row[static_cast<size_t>(c)].emplace(pq.PQgetvalue(result, r, c),
                                              static_cast<size_t>(pq.PQgetlength(result, r, c)));
    }
  }

  // A connection may have been lost while it was idle: then the query runs again on a new one.
  Answer perform(const Query& query, double deadline) {
    for (bool again = true;; again = false) {
      const bool fresh = connection == nullptr;
      if (fresh) {
        Answer failed = connect();
        if (!failed) return noted(std::move(failed), true);
      }
      Answer answer = run(query, std::min(deadline, now() + query.seconds));
      used = now();
      if (answer || answer.trouble == Trouble::sql) return noted(std::move(answer), false);
      drop();
      if (answer.trouble == Trouble::away && !fresh && again) continue;
      return noted(std::move(answer), false);
    }
  }

  // ---- the breaker

  Answer noted(Answer answer, bool connecting) {
    std::unique_lock lock(mutex);
    if (stopping) return answer;
    if (answer || answer.trouble == Trouble::sql) {
      const bool closed = breaker.succeeded();
      const bool tell = std::exchange(said_away, false);
      lock.unlock();
      if (tell) warn("the store at " + address.where + " answers again");
      if (closed && options.on_return) options.on_return();
    } else if (connecting ? breaker.connect_failed(now()) : breaker.query_failed(now())) {
      say_away(lock, answer.why);
    }
    return answer;
  }

  void say_away(std::unique_lock<std::mutex>& lock, const std::string& why) {
    for (const auto& job : jobs) job->answer = {Trouble::away, why}, job->done = true;
    jobs.clear();
    const bool tell = !std::exchange(said_away, true);
    lock.unlock();
    changed.notify_all();
    if (tell)
      warn("the store at " + address.where + " cannot be used: " + why + ". " + options.meanwhile +
           " until it answers; it is asked again from time to time");
  }

  // ---- the thread

  void wait_until(std::unique_lock<std::mutex>& lock, double when) {
    changed.wait_for(lock, base::duration_of(when - now()));
  }

  void work() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      if (breaker.open()) {
        if (now() < breaker.next_probe()) {
          wait_until(lock, breaker.next_probe());
          continue;
        }
        lock.unlock();
        drop();
        static_cast<void>(noted(connect(), true));
        used = now();
        lock.lock();
      } else if (!jobs.empty()) {
        const std::shared_ptr<Job> job = jobs.front();
        jobs.pop_front();
        will_ask(job->query);
        lock.unlock();
        Answer answer = now() < job->deadline ? perform(job->query, job->deadline)
                                              : late("waiting", job->query.seconds);
        lock.lock();
        job->answer = std::move(answer), job->done = true;
        changed.notify_all();
      } else {
        repeat_or_rest(lock);
      }
    }
    lock.unlock();
    drop();
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  // Perhaps twice, each time by a new connection.
  void will_ask(const Query& query) {
    busy_until = now() + 2 * (options.connect_seconds + query.seconds);
  }

  void repeat_or_rest(std::unique_lock<std::mutex>& lock) {
    constexpr double for_ever = 1e6;
    double next = connected ? used + options.idle_seconds : now() + for_ever;
    const double begin = now();
    for (auto& [id, repeating] : repeated) {
      if (repeating.next > begin) {
        next = std::min(next, repeating.next);
        continue;
      }
      repeating.next = begin + repeating.every;
      const Query query = repeating.query;
      will_ask(query);
      lock.unlock();
      static_cast<void>(perform(query, now() + query.seconds));
      lock.lock();
      return;
    }
    if (next > now()) return wait_until(lock, next);
    lock.unlock();
    drop();
    lock.lock();
  }
};

Link::Link(Address address, Options options)
    : owner_(::getpid()), where_(address.where), state_([&] {
        if (address.connect_seconds) options.connect_seconds = *address.connect_seconds;
        return std::make_shared<State>(std::move(address), std::move(options));
      }()) {}

Link::~Link() {
  // In a forked child there is no thread, and its locks may be held for ever.
  if (is_forked()) {
    static_cast<void>(new (std::nothrow) std::shared_ptr<State>(std::move(state_)));
    return;
  }
  std::unique_lock lock(state_->mutex);
  if (!state_->thread) return;
  state_->stopping = true;
  const uint64_t one = 1;
  static_cast<void>(!::write(state_->wake.get(), &one, sizeof one));
  state_->changed.notify_all();
  // A name look-up cannot be interrupted; the thread keeps its state.
  const bool ended =
      state_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return state_->ended; });
  const auto thread = std::move(state_->thread);
  lock.unlock();
  if (ended) thread->join();
  else thread->detach();
}

bool Link::is_forked() const { return ::getpid() != owner_; }

bool Link::is_away() const {
  if (is_forked()) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->breaker.open();
}

Answer Link::ask(Query query) {
  if (is_forked()) return {Trouble::away, "a forked process has no connection"};
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.breaker.open()) return {Trouble::away, "it did not answer before"};
  if (!state.thread) try {
      state.thread = std::make_unique<std::thread>([own = state_] { own->work(); });
    } catch (const std::system_error& error) {
      // The breaker stays closed: without a thread nothing would ask again. The next call tries.
      const std::string why = std::string("no thread can be started: ") + error.what();
      state.say_away(lock, why);
      return {Trouble::away, why};
    }
  const double limit = query.seconds + (state.connected ? 0 : state.options.connect_seconds);
  const double seconds = query.seconds;
  const auto job = std::make_shared<Job>(Job{std::move(query), state.now() + limit});
  state.jobs.push_back(job);
  state.changed.notify_all();
  const auto is_done = [&] { return job->done; };
  if (state.changed.wait_for(lock, base::duration_of(limit), is_done))
    return std::move(job->answer);
  // Another question may take longer. That says nothing about the database.
  if (state.now() < state.busy_until && std::erase(state.jobs, job) > 0)
    return state.late("waiting for an answer to another question", limit);
  // The thread keeps the deadline, unless a name look-up keeps the thread.
  if (state.changed.wait_for(lock, base::duration_of(std::max(seconds, 0.25)), is_done))
    return std::move(job->answer);
  Answer answer = state.late("a name look-up", limit);
  if (state.breaker.connect_failed(state.now())) state.say_away(lock, answer.why);
  return answer;
}

uint64_t Link::repeat(Query query, double every_seconds) {
  if (is_forked()) return 0;
  const std::lock_guard lock(state_->mutex);
  const uint64_t id = ++state_->last_id;
  state_->repeated[id] = {std::move(query), every_seconds, state_->now() + every_seconds};
  state_->changed.notify_all();
  return id;
}

void Link::stop_repeating(uint64_t id) {
  if (is_forked()) return;
  const std::lock_guard lock(state_->mutex);
  state_->repeated.erase(id);
}

}  // namespace ejk::detail::postgres
