// SPDX-License-Identifier: Apache-2.0
// What verbs print: tables for people, JSON for programs, messages and progress on stderr.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ejk/error.h>
#include <ejk/value.h>

#include "base/text.h"

namespace ejk::cli {

// Exit codes; docs/reference/tool.md and the manual say the same.
enum Exit {
  exit_ok = 0,
  exit_failed = 1,         // something could not be read, written or done
  exit_usage = 2,          // wrong words on the command line
  exit_nothing = 3,        // there is no such entry, record, label or store
  exit_unfit = 4,          // a check failed: doctor found something bad, coverage is too low
  exit_interrupted = 130,  // Ctrl-C; what was found until then is kept
  exit_closed_pipe = 141,  // the reader of the output has gone away
};

// Ends a verb: the message goes to stderr.
struct Failure : std::runtime_error {
  Failure(int exit_code, const std::string& message)
      : std::runtime_error(message), code(exit_code) {}
  int code;
};

// What `read` makes of words of the command line. An Error of it says that they are wrong.
template <class F>
auto words_read(F&& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Failure(exit_usage, error.what());
  }
}

using base::printable;

// "ejk: MESSAGE" on stderr, made printable.
void say(std::string_view message);

// 12.3 us, 4.56 ms, 1.23 s; "-" for nothing.
std::string time_text(double seconds);
// 1.23x; "-" for nothing.
std::string ratio_text(double ratio);
std::string percent_text(double share);
// "VALUE (LOW to HIGH)". Of fewer samples than these there is no interval, and no noise is known.
constexpr int min_samples = 6;
std::string interval_text(const std::string& value, const std::string& low, const std::string& high,
                          int samples);
std::string noise_text(double noise, int samples);
// A string as it is, everything else as JSON.
std::string plain_text(const Value& value);
// "block=64 forward{threads=2}", without members that are null. Everything else as JSON, nothing
// as "-".
std::string config_text(const Value& config);
inline constexpr const char* as_the_heuristic = "as the heuristic";
// What differs between two configs: "block=16->64"; "" if nothing does.
std::string change_text(const Value& heuristic, const Value& config);
// "1 entry", "2 entries".
std::string count_text(size_t count, const std::string& one, const std::string& many);
// A call as verbs take it: "OP:KEY".
std::string call_name(std::string_view op, std::string_view key);
// Of a candidate that was rejected or not tried: "crashed: SIGSEGV".
std::string why_text(const std::string& kind, const std::string& why);
// The arguments of a call from its spec: "float32[512,512] none {causal=true} -> float32[512,512]".
std::string call_text(const std::string& spec);

// What a text is printed on.
struct Paper {
  size_t width = 0;  // 0: any
  bool colours = false;
};

// Of a cell; seen where there are colours.
enum class Tone { plain, good, bad };

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  struct Cell {
    Cell(std::string t, Tone its_tone = Tone::plain) : text(std::move(t)), tone(its_tone) {}
    Cell(const char* t, Tone its_tone = Tone::plain) : text(t), tone(its_tone) {}
    std::string text;
    Tone tone;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  // A line for each row. The last columns, if they do not fit, stand below their row, each on lines
  // of its own.
  std::string text(const Paper& paper) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// Lines of at most `width` columns, broken between words where that is possible; 0: one line.
std::vector<std::string> wrapped(const std::string& text, size_t width);
// Of the terminal; 80 where there is none.
size_t output_width();

// Collects what a verb has to say, and writes it at the end in one go.
class Output {
 public:
  enum class Form { tables, wide_tables, json };
  explicit Output(Form form);

  bool json() const { return form_ == Form::json; }
  // For people; nothing in JSON mode. Lines are made printable.
  void line(std::string_view text = "");
  void table(const Table& table);
  // "name  value" lines, aligned and wrapped.
  void facts(const std::vector<std::pair<std::string, std::string>>& facts);
  // For programs; nothing in the other mode.
  void document(const Value& value);
  // As it is, in both modes.
  void raw(std::string_view text) { text_ += text; }

  // Writes everything so far to stdout. Gives the exit code: `code`, or that of a failed write.
  int finish(int code);

 private:
  Form form_;
  Paper paper_;
  std::string text_;
};

// The text of a JSON document in ASCII that every reader takes: no NaN, no infinity.
std::string strict_json(const Value& value, int indent);

// "ejk: TEXT" on stderr after the first second: one line that changes on a terminal, now and then a
// line elsewhere.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::string_view text);

 private:
  std::chrono::steady_clock::time_point next_;
  bool terminal_, shown_ = false;
};

// Says every now and then, from a thread of its own, that something that cannot report is under
// way.
class StillWorking {
 public:
  explicit StillWorking(std::string what);

 private:
  std::jthread thread_;  // stopped and joined by its destructor
};

}  // namespace ejk::cli
