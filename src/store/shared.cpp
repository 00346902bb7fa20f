// SPDX-License-Identifier: Apache-2.0
#include "store/shared.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <new>
#include <system_error>
#include <thread>

#include <ejk/names.h>

#include "base/time.h"
#include "store/keep.h"

namespace ejk::detail {
namespace {

using Sent = PostgresStore::Sent;

// For so long what was not among the prefetched entries is taken for absent.
constexpr double prefetch_lasts = 30;  // seconds
// After so many changes of an op's calls all of them are asked for again.
constexpr size_t most_changed = 1'000;
constexpr double last_send = 1;  // seconds, at the end of a process

std::string name_of_call(const EntryId& id) {
  return stable_json(Value(Value::Array{id.device, id.op, id.key, id.spec}));
}

// Nothing that others may have is worth a question.
bool is_settled(const Entry& entry, const EntryId& id, Detail detail, const Value& here) {
  const bool whole = detail == Detail::choice || !entry.candidates.empty();
  return whole && entry.id.spec == id.spec && entry.outcome != Outcome::failed &&
         entry.evidence.complete && is_measured(entry) && entry.environment == here;
}

// Whether there is a file of the entry that a note is about, or that cannot be told.
bool may_have_file(const DirectoryStore& near, const Outbox::Note& note) {
  const auto call = std::filesystem::path(near.file_of(note.call)).parent_path();
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(call / (note.environment + ".json"), ignored);
  return status.type() != std::filesystem::file_type::not_found;
}

}  // namespace

// The thread that empties the outbox. Its state outlives the store in a forked child, where there
// is no thread and a lock may be held for ever.
struct SharedStore::Sender {
  const pid_t owner = ::getpid();
  std::mutex mutex;
  std::condition_variable changed;
  bool wanted = false, stopping = false;
  std::atomic<bool> pending = true;  // perhaps something is left, of this process or another
  std::unique_ptr<std::thread> thread;

  bool is_forked() const { return ::getpid() != owner; }

  void want(SharedStore& store) {
    if (is_forked()) return;
    const std::lock_guard lock(mutex);
    if (stopping) return;
    wanted = true;
    if (!thread) try {
        thread = std::make_unique<std::thread>([&] { work(store); });
      } catch (const std::system_error&) {
        pending = true;  // what is noted stays, and the next question tries again
      }
    changed.notify_all();
  }
  void work(SharedStore& store) {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return wanted || stopping; });
      if (stopping) return;
      wanted = false;
      lock.unlock();
      const auto go_on = [&](size_t) { return !is_stopping(); };
      if (store.push(Push::noted, go_on).left > 0) pending = true;
      lock.lock();
    }
  }
  bool is_stopping() {
    const std::lock_guard lock(mutex);
    return stopping;
  }
  void stop() {
    std::unique_lock lock(mutex);
    stopping = true;
    changed.notify_all();
    const auto ending = std::move(thread);
    lock.unlock();
    if (ending) ending->join();
  }
};

SharedStore::SharedStore(std::shared_ptr<DirectoryStore> near, const std::string& url,
                         PostgresStore::Options options)
    : near_(std::move(near)),
      url_(url),
      environment_(options.environment),
      outbox_(near_->local_directory()),
      sender_(std::make_shared<Sender>()) {
  options.meanwhile = "What is in " + near_->where() + " is used, and results are kept there";
  options.on_return = [this] { sender_->want(*this); };
  far_ = std::make_unique<PostgresStore>(url, std::move(options));
}

SharedStore::~SharedStore() {
  if (sender_->is_forked()) {
    static_cast<void>(new (std::nothrow) std::shared_ptr<Sender>(std::move(sender_)));
    return;
  }
  sender_->stop();
  if (!near_->writable() || far_->is_away() || !sender_->pending || outbox_.empty()) return;
  const double until = base::seconds_now() + last_send;
  push(Push::noted, [&](size_t) { return base::seconds_now() < until; });
}

const Value& SharedStore::here(const EntryId& id, const Value* environment) const {
  if (environment != nullptr) return *environment;
  return environment_.is_null() ? environment_here(id) : environment_;
}

std::string SharedStore::where() const { return near_->where() + " and " + far_->where(); }

// ---- reading

std::optional<Entry> SharedStore::get(const EntryId& id, Detail detail, const Value* environment) {
  const Value& place = here(id, environment);
  auto near = near_->get(id, detail, &place);
  if ((near && is_settled(*near, id, detail, place)) || far_->is_away()) return near;
  auto far = ask_far(id, detail, place);
  if (!far) return near;
  if (near) {
    const bool near_fits = near->id.spec == id.spec, far_fits = far->id.spec == id.spec;
    const bool better = near_fits == far_fits ? answers_before(*far, *near, place) : far_fits;
    if (!better) return near;
  }
  if (near_->writable()) near_->put(*far);
  return far;
}

std::optional<Entry> SharedStore::ask_far(const EntryId& id, Detail detail, const Value& place) {
  bool known = false;
  std::optional<Entry> found;
  if (detail == Detail::choice && !id.spec.empty()) found = prefetched(id, place, known);
  if (!known) found = far_->get(id, detail, &place);
  if (!far_->is_away() && near_->writable() && sender_->pending.exchange(false))
    sender_->want(*this);
  return found;
}

std::optional<Entry> SharedStore::prefetched(const EntryId& id, const Value& place, bool& known) {
  Entry of_place;
  of_place.environment = place;
  const std::string call = name_of_call(id);
  std::unique_lock lock(mutex_);
  auto& newest = prefetched_[{id.device, id.op, environment_id(of_place)}];
  const bool asks = !newest;
  if (asks) newest = std::make_shared<Prefetched>();
  const std::shared_ptr<Prefetched> op = newest;  // others may forget it meanwhile
  if (op->changed.contains(call)) return std::nullopt;
  const bool waits = !op->arrived;
  if (asks) {
    lock.unlock();
    PostgresStore::Prefetched choices;
    try {
      choices = far_->prefetch(id.device, id.op, place);
    } catch (const std::bad_alloc&) {  // no answer: others must not wait for one
    }
    lock.lock();
    op->choices = std::move(choices);
    if (op->choices.complete) op->until = base::seconds_now() + prefetch_lasts;
    op->arrived = true;
    arrived_.notify_all();
  } else if (waits) {
    arrived_.wait_for(lock, base::duration_of(far_->longest_prefetch()),
                      [&] { return op->arrived; });
  }
  // Who waited for no answer has waited long enough. The next call asks for itself alone.
  known = waits && !op->choices.answered;
  if (known || op->changed.contains(call)) return std::nullopt;
  lock.unlock();
  auto found = far_->find(op->choices, id);
  known = (found && found->id.spec == id.spec) || base::seconds_now() < op->until;
  return found;
}

// What is asked next is asked anew.
void SharedStore::forget(const EntryId& id) {
  if (sender_->is_forked()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(prefetched_, [&](const auto& known) {
    const auto& [place, op] = known;
    if (place[0] != id.device || place[1] != id.op) return false;
    if (!id.spec.empty()) op->changed.insert(name_of_call(id));
    return id.spec.empty() || op->changed.size() > most_changed;
  });
}

void SharedStore::for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                           Detail detail) {
  static_cast<void>(read_all(op, visit, detail));
}

bool SharedStore::read_all(std::string_view op, const std::function<bool(const Entry&)>& visit,
                           Detail detail, const PostgresStore::Wanted& wanted) {
  std::set<std::string> seen;
  const auto place = [](const Entry& entry) {
    return name_of_call(entry.id) + environment_id(entry);
  };
  bool more = true;
  near_->for_each(
      op,
      [&](const Entry& entry) {
        if (wanted && !wanted(entry.id.device)) return true;
        seen.insert(place(entry));
        return more = visit(entry);
      },
      detail);
  if (!more) return true;
  return far_->read_all(
      op, [&](const Entry& entry) { return seen.contains(place(entry)) || visit(entry); }, detail,
      wanted);
}

// ---- writing

bool SharedStore::put(const Entry& entry, IfPresent if_present) {
  if (!near_->writable()) return near_->put(entry, if_present);  // says so
  const bool kept = near_->put(entry, if_present);
  // Behind it: who sends what a note names, and removes the note, must find this entry.
  const std::string note = far_->writable() ? outbox_.add(entry, if_present) : "";
  forget(entry.id);
  const Sent sent = send(entry, if_present);
  if (sent == Sent::later) sender_->pending = true;
  else outbox_.remove(note);
  return kept || sent == Sent::kept;
}

// Who may not replace what others put may still add to it.
PostgresStore::Sent SharedStore::send(const Entry& entry, IfPresent if_present) {
  if (!far_->writable()) return Sent::never;
  return far_->send(entry, far_->may_replace() ? if_present : IfPresent::keep_better);
}

bool SharedStore::erase(const EntryId& id) {
  bool erased = near_->erase(id);
  if (!near_->writable()) return erased;
  erased |= far_->erase(id);
  EntryId all = id;
  all.spec.clear();
  forget(id), forget(all);
  return erased;
}

SharedStore::Pushed SharedStore::push(Push what, const std::function<bool(size_t done)>& go_on) {
  // By op, so that each is read once. Of a call, the environments whose entry replaces what is
  // there: a note is about one of them, and in others something better may have come.
  std::map<std::string, std::map<std::string, std::set<std::string>>> calls;
  const auto notes = outbox_.notes();
  for (const Outbox::Note& note : notes) {
    std::set<std::string>& replaced = calls[note.call.op][name_of_call(note.call)];
    if (note.if_present == IfPresent::replace) replaced.insert(note.environment);
  }
  Pushed out;
  std::set<std::string> read, unsent;  // entries that notes are about; calls
  bool more = true;
  const auto push_op = [&](const std::string& op) {
    near_->for_each(op, [&](const Entry& entry) {
      const auto& wanted = calls[entry.id.op];
      const std::string name = name_of_call(entry.id);
      const auto it = wanted.find(name);
      if (it == wanted.end() && what == Push::noted) return true;
      const std::string environment = environment_id(entry);
      if (it != wanted.end()) read.insert(name + environment);
      more = more && (!go_on || go_on(out.sent + out.refused));
      const bool replaces = it != wanted.end() && it->second.contains(environment);
      const IfPresent if_present = replaces ? IfPresent::replace : IfPresent::keep_better;
      const Sent sent = more ? send(entry, if_present) : Sent::later;
      ++(sent == Sent::kept ? out.sent : sent == Sent::never ? out.refused : out.left);
      if (sent == Sent::later) unsent.insert(name), more = false;
      return true;
    });
  };
  if (what == Push::everything) push_op("");
  else
    for (const auto& [op, names] : std::map(calls)) push_op(op);
  for (const Outbox::Note& note : notes) {
    const std::string name = name_of_call(note.call);
    if (unsent.contains(name)) continue;
    // One that could not be read stays for another time.
    if (read.contains(name + note.environment) || !may_have_file(*near_, note))
      outbox_.remove(note.name);
  }
  return out;
}

std::unique_ptr<TuningLease> SharedStore::lease(const EntryId& id, double patience_seconds) {
  if (far_->is_away()) return near_->lease(id, patience_seconds);
  auto [lease, cannot_lock] = far_->try_lease(id, patience_seconds);
  forget(id);  // who held it before may have put something
  return cannot_lock ? near_->lease(id, patience_seconds) : std::move(lease);
}

SharedStore* database_of(const PersistentCache& layers) {
  return layers.layers().empty() ? nullptr
                                 : dynamic_cast<SharedStore*>(layers.layers().front().get());
}

}  // namespace ejk::detail
