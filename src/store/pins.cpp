// SPDX-License-Identifier: Apache-2.0
#include "store/pins.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <ejk/error.h>

#include "base/directory.h"
#include "base/env.h"
#include "base/sha256.h"
#include "base/text.h"
#include "store/keep.h"
#include "store/shared.h"

namespace ejk::detail {

using base::Absent;
using base::Directory;
using postgres::Answer;

const char* const pin_variable = "EJKERNEL_PERSISTENT_CACHE_PIN";

namespace {

constexpr const char* run_variable = "EJKERNEL_RUN";
constexpr const char* url_variable = "EJKERNEL_PERSISTENT_CACHE_URL";
constexpr size_t max_run_bytes = 200;

// In this mode there is no replacement for a place that cannot be asked: a rank that goes on alone
// would take another config than the others.
[[noreturn]] void fail(const std::string& where, const std::string& why) {
  throw Error(ErrorKind::io, "got no pins from " + where + ": " + why +
                                 "; expected the place where the ranks of this run agree on their "
                                 "configs, without which they could differ. Start the rank again "
                                 "when it answers, launch with a snapshot in a file (ejk snapshot "
                                 "publish), or unset " +
                                 pin_variable);
}

}  // namespace

// ---- databases

PostgresPins::PostgresPins(const std::string& url, std::string run, double connect, double seconds)
    : run_(std::move(run)), seconds_(seconds), store_(url, [&] {
        PostgresStore::Options options;
        options.connect_seconds = connect;
        options.connect_again = true;                    // all ranks begin at the same time
        options.on_warning = [](const std::string&) {};  // it is thrown
        return options;
      }()) {}

PinBoard::Pinned PostgresPins::ask(const std::string& sql,
                                   std::vector<postgres::Field> parameters) {
  const Answer answer = store_.ask({sql, std::move(parameters), seconds_});
  if (answer.sqlstate == postgres::no_table || answer.sqlstate == postgres::no_function)
    fail(where(), "its schema is older than pins; its owner brings it up with ejk store upgrade");
  if (answer.sqlstate == postgres::not_allowed)
    fail(where(), answer.why + "; grant this role ejk_writer");
  if (!answer) fail(where(), answer.why);
  Pinned out;
  for (const postgres::Row& row : answer.rows)
    out.emplace(row.at(0).value_or(""), row.at(1).value_or(""));
  return out;
}

PinBoard::Pinned PostgresPins::read() {
  // What is not among so many is asked for when it is needed.
  return ask(
      "SELECT encode(call_id, 'hex'), config FROM ejk.pins WHERE run = $1 "
      "ORDER BY call_id LIMIT 20000",
      {run_});
}

PinBoard::Pinned PostgresPins::pin(const std::vector<Offer>& offers) {
  if (!store_.writable())
    fail(where(),
         "nothing can be pinned there: grant this role ejk_writer, or use a newer version "
         "of this library if the schema is newer");
  std::vector<postgres::Field> calls, configs;
  for (const auto& [call, config] : offers)
    calls.push_back("\\x" + call), configs.push_back(config);
  return ask(
      "SELECT encode(pinned_call, 'hex'), pinned_config "
      "FROM ejk.pin($1, $2::bytea[], $3::text[])",
      {run_, postgres::array_of(calls), postgres::array_of(configs)});
}

// ---- numbered texts

namespace {

constexpr size_t max_text_bytes = size_t{1} << 20;  // services have limits for one message
constexpr size_t max_file_bytes = size_t{16} << 20;

PinBoard::Pinned pins_in(const std::string& text, const std::string& where) {
  PinBoard::Pinned out;
  try {
    const Value document = parse_json(text);
    for (const auto& [call, config] : document.as_object().members)
      out.emplace(call, config.as_string());
  } catch (const Error& error) {
    fail(where, std::string("a text there is not a valid list of pins (") + error.what() + ")");
  }
  return out;
}

std::string text_of(const PinBoard::Pinned& pins) {
  Value document = Value::object({});
  for (const auto& [call, config] : pins) document[call] = config;
  return stable_json(document);
}

// As many as go into one text.
PinBoard::Pinned missing_in(const PinBoard::Pinned& there,
                            const std::vector<PinBoard::Offer>& offers) {
  PinBoard::Pinned out;
  size_t bytes = 0;
  for (const auto& [call, config] : offers) {
    if (!config || there.contains(call)) continue;
    bytes += call.size() + config->size();
    if (bytes > max_text_bytes && !out.empty()) break;
    out.emplace(call, *config);
  }
  return out;
}

}  // namespace

PinBoard::Pinned PinLog::read() {
  for (const std::string& text : texts_from(next_)) {
    Pinned later = pins_in(text, where());
    seen_.merge(later);
    ++next_;
  }
  return seen_;
}

PinBoard::Pinned PinLog::pin(const std::vector<Offer>& offers) {
  for (Pinned own = missing_in(seen_, offers); !own.empty(); own = missing_in(seen_, offers)) {
    if (add(next_, text_of(own))) {
      ++next_;
      seen_.merge(own);
      continue;
    }
    const size_t before = next_;
    read();
    if (next_ == before)
      fail(where(), "text " + std::to_string(next_) + " is there and cannot be read");
  }
  const auto only_asked = [&](const Offer& offer) {
    return !offer.config && !seen_.contains(offer.call);
  };
  if (std::ranges::any_of(offers, only_asked)) read();
  return seen_;
}

// ---- directories

DirectoryPins::DirectoryPins(std::string store, const std::string& run)
    : store_(std::move(store)), folder_("pins/" + base::sha256_hex(run, 32)) {}

namespace {

std::string name_of_text(size_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "%08zu.json", number);
  return name;
}

}  // namespace

bool DirectoryPins::add(size_t number, const std::string& text) {
  const Directory root = Directory::at(store_, Absent::made, base::trust_from_environment());
  const Directory pins = root.below(folder_, Absent::made);
  const auto error = pins.add(name_of_text(number), text, root.below("tmp", Absent::made));
  if (error && error.code != EEXIST) fail(where(), error.text());
  return !error;
}

std::vector<std::string> DirectoryPins::texts_from(size_t number) {
  const Directory pins =
      Directory::at(store_, Absent::fails, base::trust_from_environment()).below(folder_);
  std::vector<std::string> out;
  if (pins.error().is_absent()) return out;
  if (pins.error()) fail(where(), pins.error().text());
  for (;; ++number) {
    auto file = pins.read(name_of_text(number), max_file_bytes);
    if (file.error.is_absent()) return out;
    if (file.error) fail(where(), file.error.text());
    if (file.strangers) trusted_ = false;
    out.push_back(std::move(file.text));
  }
}

// ---- the pins of a run

std::optional<Value> Pins::known(const EntryId& id) const {
  const auto found = known_.find(call_id(id));
  if (found == known_.end()) return std::nullopt;
  try {
    return parse_json(found->second);
  } catch (const Error& error) {
    fail(where(),
         std::string("the config that is pinned there is not valid (") + error.what() + ")");
  }
}

std::optional<Value> Pins::find(const EntryId& id) {
  const std::lock_guard lock(mutex_);
  if (!was_read_) learn(board_->read()), was_read_ = true;
  return known(id);
}

std::optional<Value> Pins::pin(const EntryId& id, const std::optional<Value>& offer) {
  const std::lock_guard lock(mutex_);
  if (auto pinned = known(id)) return pinned;
  std::optional<std::string> text;
  if (offer) text = stable_json(*offer);
  learn(board_->pin({{call_id(id), std::move(text)}}));
  return known(id);
}

void Pins::pin_all(const std::vector<std::pair<EntryId, Value>>& offers) {
  const std::lock_guard lock(mutex_);
  std::vector<PinBoard::Offer> unknown;
  for (const auto& [id, config] : offers)
    if (std::string call = call_id(id); !known_.contains(call))
      unknown.push_back({std::move(call), stable_json(config)});
  if (!unknown.empty()) learn(board_->pin(unknown));
}

// ---- gathering

namespace {
thread_local GatheredPins* gathering = nullptr;
}  // namespace

GatheredPins::GatheredPins() : outer_(std::exchange(gathering, this)) {}
GatheredPins::~GatheredPins() { gathering = outer_; }
GatheredPins* GatheredPins::of_this_thread() { return gathering; }

void GatheredPins::add(const std::shared_ptr<Pins>& pins, const EntryId& id, Value config) {
  offers_[pins].try_emplace(call_id(id), id, std::move(config));
}

size_t GatheredPins::pin() {
  size_t count = 0;
  for (const auto& [pins, gathered] : std::exchange(offers_, {})) {
    std::vector<std::pair<EntryId, Value>> offers;
    for (const auto& [call, offer] : gathered) offers.push_back(offer);
    pins->pin_all(offers);
    count += offers.size();
  }
  return count;
}

// ---- the launch

PinMode pin_mode_of_launch() {
  const std::string word = base::env_or_empty(pin_variable);
  if (word.empty() || word == "0") return PinMode::off;
  if (word == "1") return PinMode::shared;
  if (word == "directory") return PinMode::directory;
  throw Error(ErrorKind::invalid_argument,
              std::string(pin_variable) + ": got \"" + base::printable(word) +
                  "\"; expected 1 (pins in JAX's coordination service or a database), directory "
                  "(in a directory that all ranks share) or 0; " +
                  run_variable + " names the run");
}

std::string run_of_launch() {
  std::string run = base::env_or_empty(run_variable);
  if (run.empty())
    if (const std::string job = base::env_or_empty("SLURM_JOB_ID"); !job.empty())
      run = "slurm-" + base::env_or_empty("SLURM_CLUSTER_NAME") + "-" + job + "-" +
            base::env("SLURM_RESTART_COUNT").value_or("0");
  if (run.empty())
    throw Error(ErrorKind::invalid_argument,
                std::string(pin_variable) +
                    ": got no name of this run; expected one that all its ranks have and no other "
                    "run has: set " +
                    run_variable + " where the ranks are launched (a Slurm job needs none)");
  if (run.size() > max_run_bytes || base::printable(run) != run)
    throw Error(ErrorKind::invalid_argument,
                std::string(run_variable) + ": got \"" +
                    base::printable(run.substr(0, max_run_bytes)) + "\"; expected at most " +
                    std::to_string(max_run_bytes) + " bytes of printable text");
  return run;
}

namespace {

std::mutex own_board_mutex;
std::function<std::shared_ptr<PinBoard>()>& own_board() {
  static std::function<std::shared_ptr<PinBoard>()> find;
  return find;
}

std::string database_among(const PersistentCache* store) {
  if (store != nullptr)
    for (const auto& layer : store->layers())
      if (const auto* shared = dynamic_cast<const SharedStore*>(layer.get())) return shared->url();
  return base::env_or_empty(url_variable);
}

std::string directory_among(const PersistentCache* store) {
  const Store* const layer = store == nullptr ? nullptr : store->writable_layer();
  const std::string path = layer == nullptr ? std::string() : layer->local_directory();
  return path.empty() ? default_store_path() : path;
}

}  // namespace

void set_own_pin_board(std::function<std::shared_ptr<PinBoard>()> find) {
  const std::lock_guard lock(own_board_mutex);
  own_board() = std::move(find);
}

std::shared_ptr<Pins> pins_of_launch(PinMode mode, const PersistentCache* store) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Pins>> known;
  std::function<std::shared_ptr<PinBoard>()> own;
  {
    const std::lock_guard lock(own_board_mutex);
    own = own_board();
  }
  std::shared_ptr<PinBoard> board = own ? own() : nullptr;
  std::string place = board ? "own " + board->where() : "";
  std::string run, address;
  if (!board) {
    run = run_of_launch();
    address = mode == PinMode::directory ? directory_among(store) : database_among(store);
    if (address.empty())
      throw Error(ErrorKind::invalid_argument,
                  std::string(pin_variable) +
                      ": got no place for pins; expected several JAX processes "
                      "(jax.distributed.initialize) or a database: set " +
                      url_variable + ", or " + pin_variable +
                      "=directory if all ranks share EJKERNEL_PERSISTENT_CACHE_DIR");
    place = run + '\n' + address;
  }
  const std::lock_guard lock(mutex);
  if (auto pins = known[place].lock()) return pins;
  if (!board && mode == PinMode::directory) board = std::make_shared<DirectoryPins>(address, run);
  else if (!board) board = std::make_shared<PostgresPins>(address, run);
  auto pins = std::make_shared<Pins>(std::move(board));
  known[place] = pins;
  return pins;
}

}  // namespace ejk::detail
