// SPDX-License-Identifier: Apache-2.0
// The persistent tier: entries with their evidence, stores that keep them, and layers of stores.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/value.h>
#include <ejk/warning.h>

namespace EJK_EXPORT ejk {

// Which call an entry is for. `spec` is the canonical text of the abstract arguments and `key` its
// first 16 hash digits; a store compares the whole text, so two calls never share an entry by
// accident. An entry with an empty spec (imported, put by key alone) answers any call with that
// key, and a question with an empty spec is answered by any entry with that key.
struct EntryId {
  std::string device;  // fingerprint
  std::string op;      // "name@vVERSION"
  // See above.
  std::string key;
  std::string spec;
};

// How one candidate did.
struct Measurement {
  Value config;  // its fields
  // "ok" (the winner), "tied" (not told from the winner), "slower", "rejected", "untried"
  std::string status = "ok";
  // Of a rejection: "wrong" (results), "unsteady" (results that change from run to run), "threw",
  // "unbuildable" and "invalid_launch" (on a device), "crashed", "exited", "timed_out",
  // "out_of_memory", "out_of_bounds", "changed_host" (it left something changed in its process),
  // "quarantined", "invalid" (is_valid); "" otherwise
  std::string kind;
  std::string why;     // of a rejection, or of not being tried
  double seconds = 0;  // median of its samples
  double ratio = 0;    // median of its per-round ratios to the incumbent, < 1 is faster
  double ratio_low = 0, ratio_high = 0;  // 95 % interval of that median
  int samples = 0;
  double compile_seconds = 0;  // until its device programs could run; 0: it has none
};

// Why the chosen config is believed to be the best one.
struct Evidence {
  double seconds = 0, seconds_low = 0, seconds_high = 0;  // of the chosen config, with interval
  double heuristic_seconds = 0;  // in the same race; 0: the kernel has no heuristic
  Value heuristic_config = {};   // that took them; null: not known, or there is none
  double speedup = 0, speedup_low = 0, speedup_high = 0;  // heuristic over chosen, paired
  double noise = 0;            // half-width of the interval of the incumbent's time, relative
  int samples = 0;             // rounds the chosen config took part in
  bool complete = true;        // false: cut by the budget, or a candidate could not be tried
  double tuning_seconds = 0;   // spent on finding it, by all tunings that went on with each other
  double resumed_seconds = 0;  // of these, by calls, since it was last complete
  std::string strategy;  // "race", "single run", or the search before the race: "auto", "random"...
  std::string clock;     // of the samples: "thread_cpu", "wall" or "device"
  std::string cache;     // "warm" or "cold": what a sample began with
  std::string guard;     // "child" (first runs in a child process), "none", or "mixed": configs
                         // that wait in a child had theirs in the process itself
  std::string data;      // what was measured on: "call" (the caller's own) or "recorded sketch"
  std::string library;   // version that measured
  std::string time;      // UTC, ISO 8601
  std::string offered = {};  // digest of the list of candidates that the kernel offered; "": not
                             // known. Tells without reading them whether there are new ones
};

// What a tuning came to. Only `tuned` carries a better config than the incumbent's with evidence;
// the others are kept so that a hopeless tuning is not repeated at every call.
enum class Outcome {
  tuned,       // config is the winner
  unresolved,  // the machine was too noisy to tell: config is the incumbent
  failed,      // every candidate was rejected: config is null
};
std::string_view outcome_name(Outcome outcome);

// The format of entries that this version reads and writes.
inline constexpr int entry_schema = 1;

// What a store holds for one call: the choice, the machine it was made on, and the evidence.
struct Entry {
  // The call, how its tuning ended, and the winner's fields (null if there is none).
  EntryId id;
  Outcome outcome = Outcome::tuned;
  Value config;
  // The class of the config: the kernel's `numerics`; null: not known
  Value numerics = {};
  // "measured"; "put" by a program under its key; "imported"; "transferred" from another device
  std::string provenance = "measured";
  Value device;  // identity
  Value environment;
  Evidence evidence;
  std::vector<Measurement> candidates;
  // Members this version does not know; written back as they were. Those inside "device",
  // "evidence" and "candidates" stand under these names.
  Value extra;
  // Not part of the document: its checksum is right, and its file belongs to this user or to root
  // and is not for everyone to write. A store writes an entry that is not trusted without a
  // checksum, so that it stays so.
  bool trusted = true;
};

// The JSON document of an entry, as specified in docs/reference/store_format.md, and back.
// from_document throws Error(parse) for anything that is not an entry of a known schema.
Value entry_to_document(const Entry& entry);
Entry entry_from_document(const Value& document);

// Entries of one call that were measured in different environments are kept side by side. 32 hex
// digits that tell them apart. A transferred entry has its own: it was not measured on this device.
std::string environment_id(const Entry& entry);

// True if `candidate` should replace `present`. Both are of the same call and environment. The
// first rule that tells them apart decides; the better one
//   1. was measured by a tuning that wrote to this store,
//   2. has an answer, where the other is a failed tuning,
//   3. is complete, where the other was cut short,
//   4. has more samples,
//   5. is newer,
//   6. is trusted,
//   7. is the one that a comparison of their digests prefers.
// That is a total order which does not depend on who writes: the same entry stays, in whatever
// order and however often entries are put.
bool better_evidence(const Entry& candidate, const Entry& present);

// True if `a` answers a call in `environment` before `b` does. Both are of this call. A measured
// entry comes first, then the entry of that environment, then the better one (above).
bool answers_before(const Entry& a, const Entry& b, const Value& environment);

// How much of an entry is read.
enum class Detail {
  choice,  // all but the candidates: some kilobytes, all that a hit needs
  all,
};

// Held while one process tunes a key. Released by the destructor, and by the operating system if
// the holder dies.
class TuningLease {
 public:
  virtual ~TuningLease() = default;
  // The holder calls it several times a second. Other processes stop waiting for a holder that is
  // silent for a second.
  virtual void refresh() {}
};

// What a put does where its call and environment have an entry already.
enum class IfPresent : uint8_t { keep_better, replace };

// A place where entries are kept, one for each call and environment. Implementations are safe to
// use from several threads; a failure is a miss or a `false`, never an exception, and is reported
// to `on_warning` (each problem once). tests/store/contract_test.cpp says what all of them promise.
class Store {
 public:
  virtual ~Store() = default;
  // The entry of that call that answers first in `environment` (answers_before). nullptr: in the
  // environment of this process.
  virtual std::optional<Entry> get(const EntryId& id, Detail detail = Detail::all,
                                   const Value* environment = nullptr) = 0;
  // Keeps the entry unless a better one of its call and environment is there (better_evidence).
  // With IfPresent::replace it is kept in any case, and entries that would answer its call before
  // it in its environment are removed. Returns false only if writing failed.
  virtual bool put(const Entry& entry, IfPresent if_present = IfPresent::keep_better) = 0;
  // Removes the entries of that call in all environments. True if something was removed.
  virtual bool erase(const EntryId& id) = 0;
  // Visits every readable entry of that op ("" for all) once, until `visit` returns false.
  virtual void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                        Detail detail = Detail::all) = 0;
  // The right to tune this key. Returns at once if it is free, else waits until the holder is done
  // or dead. nullptr if another process still holds it after `patience_seconds` or was silent for a
  // second, or if this store cannot lock.
  virtual std::unique_ptr<TuningLease> lease(const EntryId& id, double patience_seconds) = 0;
  // Where it is, for people.
  virtual std::string where() const = 0;
  virtual bool writable() const = 0;
  // Where tunings that write here keep what concerns this machine: the crash journal and the
  // quarantine. A directory that may not exist yet; "": they keep none.
  virtual std::string local_directory() const;  // default_store_path()
};

// A directory with one small file of JSON per entry: safe between threads, processes and machines
// that share the file system. Nothing is read or created until it is needed.
class DirectoryStore final : public Store {
 public:
  // How the directory is used.
  struct Options {
    bool read_only = false;  // nothing is written, and no lease is taken
    WarningSink on_warning;  // default: stderr_warnings()
    Value environment;       // of this process, for answers_before; default: cpu_device()'s
  };
  explicit DirectoryStore(std::string path) : DirectoryStore(std::move(path), Options{}) {}
  DirectoryStore(std::string path, Options options);
  ~DirectoryStore() override;
  DirectoryStore(const DirectoryStore&) = delete;
  DirectoryStore& operator=(const DirectoryStore&) = delete;

  std::optional<Entry> get(const EntryId& id, Detail detail = Detail::all,
                           const Value* environment = nullptr) override;
  bool put(const Entry& entry, IfPresent if_present = IfPresent::keep_better) override;
  bool erase(const EntryId& id) override;
  void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                Detail detail = Detail::all) override;
  std::unique_ptr<TuningLease> lease(const EntryId& id, double patience_seconds) override;
  std::string where() const override;
  bool writable() const override;
  std::string local_directory() const override;  // where()

  // The file an entry is or would be kept in.
  std::string file_of(const Entry& entry) const;
  std::string file_of(const EntryId& id) const;  // of an entry of this store's environment

  // Brings the entries of version 1 of the format to this one, whose readers read both. May be
  // interrupted (`go_on` returns false) and repeated at any time, beside readers and writers.
  struct Upgrade {
    size_t moved = 0;  // they stand in their new place, or something better did
    size_t left = 0;   // unreadable files, which stay; on_warning says why
  };
  Upgrade upgrade(const std::function<bool(size_t done, size_t of)>& go_on = {});

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// $EJKERNEL_PERSISTENT_CACHE_DIR, else $XDG_CACHE_HOME/ejkernel, else ~/.cache/ejkernel; "" if
// none of these is set.
std::string default_store_path();

// Layers of stores: the user's own first, then read-only ones (a site's, an application's).
// Reads ask each layer in turn, a failed tuning does not hide an answer behind it; writes go to the
// first writable layer. Visits pass over entries that a layer in front hides. Thread-safe if its
// layers are.
class PersistentCache {
 public:
  // An answer and the layer that gave it.
  struct Found {
    Entry entry;        // a copy: it stays valid
    std::string where;  // of the layer that had it
  };

  // The default place, with the read-only layers of $EJKERNEL_PERSISTENT_CACHE_LAYERS (paths
  // separated by ':') behind it.
  PersistentCache();
  // One directory; a leading "~" is the home directory.
  explicit PersistentCache(const std::string& path);
  explicit PersistentCache(std::vector<std::shared_ptr<Store>> layers);

  // The entry of that call. If there is none in any layer, one that was stored under the call's
  // key without its outputs (spec_without_outputs): its id is another then, and its config may not
  // fit these outputs.
  std::optional<Found> get(const EntryId& id, Detail detail = Detail::all,
                           const Value* environment = nullptr);
  bool put(const Entry& entry, IfPresent if_present = IfPresent::keep_better);
  bool erase(const EntryId& id);
  void for_each(std::string_view op, const std::function<bool(const Entry&)>& visit,
                Detail detail = Detail::all);
  std::unique_ptr<TuningLease> lease(const EntryId& id, double patience_seconds);
  const std::vector<std::shared_ptr<Store>>& layers() const noexcept { return layers_; }
  // The layer that writes go to; nullptr if there is none.
  Store* writable_layer() const;

 private:
  std::optional<Found> find(const EntryId& id, Detail detail, const Value* environment);
  std::vector<std::shared_ptr<Store>> layers_;
};

}  // namespace ejk
