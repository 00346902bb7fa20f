// SPDX-License-Identifier: Apache-2.0
#include "record/sending.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include <ejk/error.h>

#include "base/directory.h"
#include "base/time.h"
#include "record/folder.h"
#include "store/keep.h"

namespace ejk::detail {
namespace {

using base::Absent;
using base::Directory;

constexpr const char* source_file = "source";
constexpr const char* outbox = "outbox";
constexpr std::string_view note_suffix = ".note";
constexpr size_t max_notes = 10'000, batch_calls = 200, batch_bytes = size_t{4} << 20;
constexpr size_t max_time_bytes = 64;  // as the database takes them

bool is_source(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Directory open(const std::string& folder, Absent absent) {
  return Directory::at(folder, absent, base::trust_from_environment());
}

// The same for every count of it.
std::string document_of(RecordedCall call) {
  call.calls = call.timed_calls = 0;
  call.timed_seconds = 0;
  call.first = call.last = "";
  return stable_json(record_to_document(call));
}

}  // namespace

CallSender::CallSender(std::string folder, const std::string& url, PostgresStore::Options options)
    : folder_(std::move(folder)), database_(url, std::move(options)) {}

// ---- what is to be sent

// The name of the folder, made when it is first needed; "": it cannot be kept.
std::string CallSender::source() {
  if (!source_.empty()) return source_;
  const auto kept = [this](const Directory& top) {
    const std::string text = top.read(source_file, 64).text;
    return is_source(text) ? source_ = text : std::string();
  };
  if (!kept(open(folder_, Absent::fails)).empty()) return source_;
  const Directory top = open(folder_, Absent::made);
  const base::FileLock lock(open(folder_, Absent::made), "lock",
                            {std::chrono::milliseconds(1'000), std::chrono::milliseconds(5)},
                            base::FileLock::AfterUse::keep_file);
  if (!lock.held() && !lock.error().has_no_locks()) return "";
  if (!kept(top).empty()) return source_;
  const std::string name = base::random_digits();
  if (!is_source(name) || top.replace(source_file, name, top.below("tmp", Absent::made))) return "";
  return source_ = name;
}

void CallSender::leave_note() {
  const Directory out = open(folder_, Absent::made).below(outbox, Absent::made);
  if (!note_.empty() && out.has(note_)) return;
  const std::string digits = base::random_digits();
  if (out.error() || digits.empty()) return;
  note_ = digits + std::string(note_suffix);
  const Directory temporary = open(folder_, Absent::made).below("tmp", Absent::made);
  static_cast<void>(!out.replace(note_, base::utc_now(), temporary, base::Written::unflushed));
}

void CallSender::take_note_back() {
  if (note_.empty()) return;
  static_cast<void>(!open(folder_, Absent::fails).below(outbox).remove(note_));
  note_.clear();
}

// ---- sending

class CallSender::Batch {
 public:
  Batch(CallSender& sender, const GoOn& go_on) : sender_(sender), go_on_(go_on) {}

  Sent result;

  void add(RecordedCall call) {
    if (call.first.size() > max_time_bytes || call.last.size() > max_time_bytes) {
      ++result.refused;
      return;
    }
    PostgresStore::CallCount count;
    count.call = call_id(call.id);
    count.id = call.id;
    count.calls = call.calls, count.timed_calls = call.timed_calls;
    count.timed_seconds = call.timed_seconds;
    count.first = call.first, count.last = call.last;
    count.record = document_of(std::move(call));
    bytes_ += count.record.size();
    calls_.push_back(std::move(count));
    if (calls_.size() >= batch_calls || bytes_ >= batch_bytes) send();
  }
  void send() {
    if (calls_.empty()) return;
    using Outcome = PostgresStore::Sent;
    more_ = more_ && (!go_on_ || go_on_(result.sent + result.refused));
    const std::string source = more_ ? sender_.source() : "";
    const Outcome sent = source.empty() ? Outcome::later
                         : !sender_.database_.writable()
                             ? Outcome::never
                             : sender_.database_.count_calls(source, calls_);
    (sent == Outcome::kept    ? result.sent
     : sent == Outcome::never ? result.refused
                              : result.left) += calls_.size();
    more_ = more_ && sent != Outcome::later;
    calls_.clear();
    bytes_ = 0;
  }

 private:
  CallSender& sender_;
  const GoOn& go_on_;
  std::vector<PostgresStore::CallCount> calls_;
  size_t bytes_ = 0;
  bool more_ = true;
};

CallSender::Sent CallSender::send(const std::vector<File>& files, const GoOn& go_on) {
  Batch batch(*this, go_on);
  const Directory top = open(folder_, Absent::fails);
  for (const File& file : files)
    if (auto loaded = load_record(top.below(file.folder), file.name); loaded.call)
      batch.add(std::move(*loaded.call));
  batch.send();
  return batch.result;
}

CallSender::Sent CallSender::push(Push what, const GoOn& go_on) {
  Batch batch(*this, go_on);
  const Directory top = open(folder_, Absent::fails), out = top.below(outbox);
  const std::vector<std::string> notes =
      out.error() ? std::vector<std::string>{} : out.some_names(note_suffix, max_notes);
  if (notes.empty() && what == Push::noted) return {};
  // Times of one machine; a file system that many share may have others, some seconds apart.
  std::string since = what == Push::everything ? "" : "9";
  for (const std::string& note : notes) since = std::min(since, out.read(note, 64).text);
  for_each_record_file(top, [&](const Directory& in, const std::string& name) {
    auto loaded = load_record(in, name);
    if (loaded.call && loaded.call->last >= since) batch.add(std::move(*loaded.call));
  });
  batch.send();
  if (batch.result.left == 0)
    for (const std::string& note : notes) static_cast<void>(!out.remove(note));
  return batch.result;
}

}  // namespace ejk::detail
