// SPDX-License-Identifier: Apache-2.0
// Recording: which calls a program makes, how often and how long, kept on disk for tuning them
// later, in another process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/invocation.h>
#include <ejk/kernel.h>
#include <ejk/selector.h>
#include <ejk/store.h>
#include <ejk/value.h>

namespace EJK_EXPORT ejk {

// One distinct call. Arrays are kept as sketches, without their data (type, shape, range of their
// elements, how many integers are how large, a seed), everything else as values.
struct RecordedCall {
  EntryId id;  // of forward runs: the key that is in labels
  // Where the call ran and in which context.
  Platform platform = Platform::cpu;
  Context context = Context::plain;
  Value members;     // the kernel's own data members; null: none
  Value batch_axes;  // null: none
  Value arguments;   // run's parameters in order, as sketches; null: cannot be made again
  // Not recorded: in a call made by hand, {"given": i} in `arguments` stands for arrays[i] itself.
  std::vector<Tensor> arrays = {};
  uint64_t calls = 0;
  uint64_t timed_calls = 0;  // of these
  double timed_seconds = 0;  // they took
  std::string first, last;   // UTC, ISO 8601

  // About what all the calls took, 0 if none was timed.
  double seconds() const;
};

// A folder of recorded calls. Any number of processes may record into one folder; each adds its
// counts to what is there. The recording has a thread that writes files: shortly after a new call,
// then at intervals, and at the end. A process that is killed loses the last few counts. Failures
// of the file system are one warning, never an exception, and recording continues in memory.
// Thread-safe. A forked child does not record.
class Recording {
 public:
  // How much is recorded and when it is written.
  struct Options {
    size_t most_calls = 1'000'000;     // in the folder; further ones are not kept
    double first_write_seconds = 0.3;  // after a new call
    double interval_seconds = 10;      // between writes of counts
    // A database that gets the counts of the folder too (postgresql://...), a while after they were
    // written and at the end; what it did not get is sent by a later process or `ejk store push`.
    std::string database = {};
    double send_seconds = 60;     // between sendings, about
    WarningSink on_warning = {};  // default: stderr_warnings()
  };
  explicit Recording(std::string folder) : Recording(std::move(folder), Options{}) {}
  Recording(std::string folder, Options options);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Writes what is not yet written. False if something could not be.
  bool flush();
  const std::string& folder() const;

  // The number under which this call is counted, and its sketch kept if it is new. 0: it is not
  // recorded, because there are too many.
  uint32_t record(const Invocation& inv, const AnyKernel& kernel);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// $EJKERNEL_OPS_RECORD_DIR, else "recorded" in default_store_path(); "" if neither is there.
std::string default_recording_path();
// The recording that $EJKERNEL_OPS_RECORD=1 asks for, one for the whole process; nullptr if it is
// unset, empty or 0. Throws Error(invalid_argument) for anything else.
std::shared_ptr<Recording> recording_from_environment();

// Calls of this thread are recorded there until the scope ends, instead of where their selector
// records. A call costs more then: it is described anew each time.
Scope record_calls(std::shared_ptr<Recording> recording);

// Where recorded calls are read from: $EJKERNEL_PERSISTENT_CACHE_URL, else
// default_recording_path().
std::string default_recordings();

// What a folder holds: device, op, key. Files that cannot be read are passed over and reported to
// `on_warning`. A folder that is not there holds nothing. For a database (postgresql://...) what
// all folders sent there, each call with the sum of their counts, and what only
// default_recording_path() holds.
using RecordedCalls =
    std::map<std::string, std::map<std::string, std::map<std::string, RecordedCall>>>;
RecordedCalls read_recorded(const std::string& place, const WarningSink& on_warning = {});

// The JSON document of a record, and back; docs/reference/store_format.md specifies it. Throws
// Error(parse) for a document that is not a record of a known schema.
inline constexpr int record_schema = 1;
Value record_to_document(const RecordedCall& call);
RecordedCall record_from_document(const Value& document);

namespace detail {
// The recording that the calling thread's scopes name; nullptr: none does.
Recording* scoped_recording();
}  // namespace detail

}  // namespace ejk
