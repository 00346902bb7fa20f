// SPDX-License-Identifier: Apache-2.0
// Pins: of each call of a run, the config that its first rank took and that all ranks take.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ejk/store.h>

#include "store/postgres/postgres_store.h"

namespace ejk::detail {

// A place that all ranks of a run reach, and where what was written first for a call stays.
class PinBoard {
 public:
  struct Offer {
    std::string call;                   // call_id
    std::optional<std::string> config;  // JSON; nullopt: only asks
  };
  using Pinned = std::map<std::string, std::string>;  // by call

  virtual ~PinBoard() = default;
  // All pins of the run.
  virtual Pinned read() = 0;
  // Writes what is not there yet and gives what is pinned for these calls then, and perhaps for
  // others. One question for all of them, which waits for no other rank. It and `read` throw
  // Error(io) if the place cannot be asked.
  virtual Pinned pin(const std::vector<Offer>& offers) = 0;
  virtual std::string where() const = 0;
  // Whether all that may write there are trusted as much as this program.
  virtual bool trusted() const = 0;
};

// In a database: ejk.pin (postgres/schema_3.sql).
class PostgresPins final : public PinBoard {
 public:
  // A run that waits for its choices waits longer than a call would.
  static constexpr double connect_seconds = 10, pin_seconds = 30;
  PostgresPins(const std::string& url, std::string run, double connect = connect_seconds,
               double seconds = pin_seconds);

  Pinned read() override;
  Pinned pin(const std::vector<Offer>& offers) override;
  std::string where() const override { return store_.where(); }
  bool trusted() const override { return false; }

 private:
  Pinned ask(const std::string& sql, std::vector<postgres::Field> parameters);

  const std::string run_;
  const double seconds_;
  PostgresStore store_;
};

// Where a place can only keep numbered texts, each of which is written once: of the texts that have
// a call, the first one pins it. A number is written only when there are texts of all smaller ones.
class PinLog : public PinBoard {
 public:
  Pinned read() override;
  Pinned pin(const std::vector<Offer>& offers) override;

 protected:
  // False: there is one already.
  virtual bool add(size_t number, const std::string& text) = 0;
  // All from this number on, in their order.
  virtual std::vector<std::string> texts_from(size_t number) = 0;

 private:
  size_t next_ = 0;  // that is not known yet
  Pinned seen_;      // in all before: what was read stays known although a later step fails
};

// In the directory of a store, on a file system that all ranks share.
class DirectoryPins final : public PinLog {
 public:
  DirectoryPins(std::string store, const std::string& run);
  std::string where() const override { return store_ + "/" + folder_; }
  bool trusted() const override { return trusted_; }

 private:
  bool add(size_t number, const std::string& text) override;
  std::vector<std::string> texts_from(size_t number) override;

  const std::string store_, folder_;
  std::atomic<bool> trusted_ = true;  // only this user and root could write what was read
};

// The pins of a run as one process knows them. Thread-safe.
class Pins {
 public:
  explicit Pins(std::shared_ptr<PinBoard> board) : board_(std::move(board)) {}

  // Those of a run that goes on come with the first question, all at once.
  std::optional<Value> find(const EntryId& id);
  // What all ranks take; nullopt if no rank has offered anything.
  std::optional<Value> pin(const EntryId& id, const std::optional<Value>& offer);
  void pin_all(const std::vector<std::pair<EntryId, Value>>& offers);

  std::string where() const { return board_->where(); }
  bool trusted() const { return board_->trusted(); }

 private:
  void learn(PinBoard::Pinned pinned) { known_.merge(pinned); }
  std::optional<Value> known(const EntryId& id) const;

  std::mutex mutex_;
  const std::shared_ptr<PinBoard> board_;
  bool was_read_ = false;
  PinBoard::Pinned known_;
};

// While there is one, choices of its thread are only gathered, as offers; what the run has pinned
// already answers.
class GatheredPins {
 public:
  GatheredPins();
  ~GatheredPins();
  GatheredPins(const GatheredPins&) = delete;
  GatheredPins& operator=(const GatheredPins&) = delete;

  static GatheredPins* of_this_thread();
  void add(const std::shared_ptr<Pins>& pins, const EntryId& id, Value config);
  // All of them in one question; gives how many there were.
  size_t pin();

 private:
  GatheredPins* const outer_;
  std::map<std::shared_ptr<Pins>, std::map<std::string, std::pair<EntryId, Value>>> offers_;
};

extern const char* const pin_variable;
// What $EJKERNEL_PERSISTENT_CACHE_PIN says. Throws Error(invalid_argument) if it says nothing.
enum class PinMode { off, shared, directory };
PinMode pin_mode_of_launch();

// The run: $EJKERNEL_RUN, else the job that Slurm started. Throws Error(invalid_argument).
std::string run_of_launch();

// Where its ranks pin: the program's own board if it has one, else a database among the layers or
// in $EJKERNEL_PERSISTENT_CACHE_URL, or the directory of the layer that is written. One object for
// all who ask with the same place. Throws Error(invalid_argument) if there is none.
std::shared_ptr<Pins> pins_of_launch(PinMode mode, const PersistentCache* store);

// A board that the program has by itself; nullptr: none for now. Asked at each first question of a
// selector.
void set_own_pin_board(std::function<std::shared_ptr<PinBoard>()> find);

}  // namespace ejk::detail
