// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <ejk/error.h>

namespace ejk::cli {
namespace {

// Columns on a terminal, about: wide characters are not known here.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

std::string cut(const std::string& line, size_t width) {
  if (width == 0 || columns_of(line) <= width) return line;
  size_t columns = 0, end = 0;
  for (; end < line.size(); ++end) {
    if ((static_cast<uint8_t>(line[end]) & 0xc0) == 0x80) continue;
    if (++columns == width) break;
  }
  return line.substr(0, end) + "~";
}

std::string members_text(const Value& object) {
  std::string out;
  for (const auto& [name, member] : object.as_object().members) {
    const bool nested = member.is_object() && !member.as_object().members.empty();
    const std::string inner = nested ? members_text(member) : plain_text(member);
    if (member.is_null() || inner.empty()) continue;
    out += (out.empty() ? "" : " ") + name + (nested ? "{" + inner + "}" : "=" + inner);
  }
  return out;
}

// Members that differ; one that is null counts as absent.
std::string changes_in(const Value& from, const Value& to) {
  const auto member = [](const Value& of, const std::string& name) {
    const Value* found = of.find(name);
    return found == nullptr ? Value() : *found;
  };
  std::vector<std::string> names;
  for (const Value* object : {&to, &from})
    for (const auto& [name, value] : object->as_object().members)
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  std::string out;
  for (const std::string& name : names) {
    const Value before = member(from, name), after = member(to, name);
    if (before == after) continue;
    const bool nested = before.is_object() && after.is_object();
    const auto shown = [](const Value& v) { return v.is_null() ? "none" : plain_text(v); };
    out += (out.empty() ? "" : " ") + name +
           (nested ? "{" + changes_in(before, after) + "}"
                   : "=" + shown(before) + "->" + shown(after));
  }
  return out;
}

// What is given by value.
std::string value_text(const Value& value) {
  if (value.is_null()) return "none";
  return value.is_object() ? "{" + config_text(value) + "}" : plain_text(value);
}

std::string argument_text(const Value& argument) {
  const Value *dtype = argument.find("dtype"), *shape = argument.find("shape");
  if (dtype == nullptr || shape == nullptr || !dtype->is_string() || !shape->is_array())
    return value_text(argument);
  std::string out = dtype->as_string() + "[";
  for (const Value& size : shape->as_array())
    out += (out.back() == '[' ? "" : ",") + value_text(size);
  out += "]";
  if (const Value* strides = argument.find("strides")) out += " strided " + stable_json(*strides);
  return out;
}

Value without_infinities(const Value& value) {
  if (value.is_float() && !std::isfinite(value.as_double())) return {};
  if (value.is_array()) {
    Value::Array out;
    for (const Value& item : value.as_array()) out.push_back(without_infinities(item));
    return out;
  }
  if (!value.is_object()) return value;
  Value::Object out;
  for (const auto& [name, member] : value.as_object().members)
    out.members.emplace_back(name, without_infinities(member));
  return out;
}

bool may_use_colours() {
  const char *no_color = std::getenv("NO_COLOR"), *term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == 0) && term != nullptr &&
         std::string_view(term) != "dumb";
}

enum class Ink { bold, pale, green, red };

std::string in(Ink ink, const std::string& text, const Paper& paper) {
  if (!paper.colours || text.empty()) return text;
  constexpr std::array<int, 4> codes = {1, 2, 32, 31};
  return fmt::format("\033[{}m{}\033[0m", codes[static_cast<size_t>(ink)], text);
}

std::string in_tone(const Table::Cell& cell, const std::string& text, const Paper& paper) {
  switch (cell.tone) {
    case Tone::plain:
      return text;
    case Tone::good:
      return in(Ink::green, text, paper);
    case Tone::bad:
      return in(Ink::red, text, paper);
  }
  return text;
}

// How many leading columns fit into a line; at least one.
size_t columns_that_fit(const std::vector<size_t>& widths, size_t width) {
  if (width == 0) return widths.size();
  size_t count = 0, used = 0;
  for (; count < widths.size(); ++count) {
    used += widths[count] + (count > 0 ? 2 : 0);
    if (used > width) break;
  }
  return std::max<size_t>(count, 1);
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace

void say(std::string_view message) {
  // Lines of our own messages stay lines.
  std::string out;
  while (true) {
    const size_t end = message.find('\n');
    out += (out.empty() ? "ejk: " : "  ") + printable(message.substr(0, end)) + "\n";
    if (end == std::string_view::npos) break;
    message.remove_prefix(end + 1);
  }
  static_cast<void>(!::write(STDERR_FILENO, out.data(), out.size()));
}

std::string time_text(double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return "-";
  if (seconds < 1e-6) return fmt::format("{:.3g} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 1000) return fmt::format("{:.3g} s", seconds);
  return fmt::format("{:.0f} s", seconds);
}

std::string ratio_text(double ratio) {
  return ratio > 0 && std::isfinite(ratio) ? fmt::format("{:.3g}x", ratio) : "-";
}

std::string percent_text(double share) {
  return std::isfinite(share) ? fmt::format("{:.3g} %", 100 * share) : "-";
}

std::string interval_text(const std::string& value, const std::string& low, const std::string& high,
                          int samples) {
  return value == "-" || samples < min_samples ? value : value + " (" + low + " to " + high + ")";
}

std::string noise_text(double noise, int samples) {
  return noise > 0 && samples >= min_samples ? "+-" + percent_text(noise) : "-";
}

std::string plain_text(const Value& value) {
  return value.is_string() ? value.as_string() : stable_json(value);
}

std::string config_text(const Value& config) {
  if (config.is_null()) return "-";
  if (!config.is_object() || config.as_object().members.empty()) return stable_json(config);
  const std::string out = members_text(config);
  return out.empty() ? "-" : out;
}

std::string change_text(const Value& heuristic, const Value& config) {
  if (heuristic == config) return "";
  if (!heuristic.is_object() || !config.is_object())
    return plain_text(heuristic) + "->" + plain_text(config);
  return changes_in(heuristic, config);
}

std::string count_text(size_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string call_name(std::string_view op, std::string_view key) {
  return std::string(op) + ":" + std::string(key);
}

std::string why_text(const std::string& kind, const std::string& why) {
  if (kind.empty() || why.starts_with(kind + ": ")) return why;  // so earlier versions kept it
  return why.empty() ? kind : kind + ": " + why;
}

std::string call_text(const std::string& spec) {
  if (spec.empty()) return "(call not known)";
  Value value;
  try {
    value = parse_json(spec);
  } catch (const Error&) {
    return spec;
  }
  const Value* args = value.find("args_spec");
  if (args == nullptr || !args->is_array()) return spec;
  std::string out;
  const auto add = [&](const std::string& text) { out += (out.empty() ? "" : " ") + text; };
  for (const Value& argument : args->as_array()) add(argument_text(argument));
  if (const Value* named = value.find("kwargs_spec"); named && named->is_object())
    for (const auto& [name, argument] : named->as_object().members)
      add(name + "=" + argument_text(argument));
  if (const Value* outputs = value.find("outputs_spec"); outputs && outputs->is_array())
    for (const Value& output : outputs->as_array()) add("-> " + argument_text(output));
  for (const char* name : {"batch_axes", "method", "kernel", "numerics", "objective"})
    if (const Value* member = value.find(name); member && !member->is_null())
      add(std::string(name) + ":" + value_text(*member));
  return out.empty() ? "(no arguments)" : out;
}

std::vector<std::string> wrapped(const std::string& text, size_t width) {
  if (width == 0 || columns_of(text) <= width) return {text};
  std::vector<std::string> lines(1);
  size_t columns = 0;
  const auto put = [&](const std::string& word) {
    for (size_t at = 0; at < word.size();) {  // a word that is wider than a line is broken
      if (columns == width) lines.emplace_back(), columns = 0;
      do lines.back() += word[at++];
      while (at < word.size() && (static_cast<uint8_t>(word[at]) & 0xc0) == 0x80);
      ++columns;
    }
  };
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const size_t needed = columns_of(word) + (columns > 0 ? 1 : 0);
    if (columns > 0 && columns + needed > width) lines.emplace_back(), columns = 0;
    else if (at > 0) lines.back() += ' ', ++columns;
    put(word);
    at = end + 1;
  }
  return lines;
}

size_t output_width() {
  constexpr size_t usual = 80;
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : usual;
}

std::string Table::text(const Paper& paper) const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(columns_of(column.title));
  std::vector<std::vector<std::string>> safe;
  for (const auto& row : rows_) {
    auto& cells = safe.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      cells.push_back(printable(row[i].text));
      widths[i] = std::max(widths[i], columns_of(cells[i]));
    }
  }
  const size_t beside = columns_that_fit(widths, paper.width);
  const auto line = [&](const auto& text_of, const auto& inked) {
    std::string out;
    for (size_t i = 0; i < beside; ++i) {
      const std::string& cell = text_of(i);
      const std::string space(widths[i] - columns_of(cell), ' ');
      if (i > 0) out += "  ";
      out += columns_[i].align == Align::right ? space + inked(i, cell)
                                               : inked(i, cell) + (i + 1 == beside ? "" : space);
    }
    return out + "\n";
  };
  const auto as_it_is = [](size_t, const std::string& text) { return text; };
  std::string titles = line(
      [&](size_t i) -> auto& { return columns_[i].title; }, as_it_is);
  titles.pop_back();
  std::string out = in(Ink::bold, titles, paper) + "\n";
  constexpr size_t indent = 4, least = 20;
  for (size_t r = 0; r < safe.size(); ++r) {
    const auto inked = [&](size_t i, const std::string& text) {
      return in_tone(rows_[r][i], text, paper);
    };
    out += line(
        [&](size_t i) -> auto& { return safe[r][i]; }, inked);
    for (size_t i = beside; i < columns_.size(); ++i) {
      if (safe[r][i].empty() || safe[r][i] == "-") continue;
      const std::string label = lower_case(columns_[i].title) + ": ";
      const size_t room = std::max(paper.width, indent + least) - indent;
      bool first = true;
      for (const std::string& part : wrapped(label + safe[r][i], room)) {
        const bool labelled = std::exchange(first, false) && part.starts_with(label);
        const std::string rest = labelled ? part.substr(label.size()) : part;
        out += std::string(indent, ' ') + (labelled ? in(Ink::pale, label, paper) : "") +
               inked(i, rest) + "\n";
      }
    }
  }
  return out;
}

Output::Output(Form form)
    : form_(form), paper_{form == Form::wide_tables ? 0 : output_width(), may_use_colours()} {}

void Output::line(std::string_view text) {
  if (!json()) text_ += printable(text) + "\n";
}

void Output::table(const Table& table) {
  if (!json()) text_ += table.text(paper_);
}

void Output::facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  size_t indent = 0;
  for (const auto& fact : facts) indent = std::max(indent, fact.first.size() + 2);
  for (const auto& [name, value] : facts) {
    std::string before = name + std::string(indent - name.size(), ' ');
    const size_t room = paper_.width > indent ? paper_.width - indent : 0;
    for (const std::string& part : wrapped(printable(value), room))
      line(std::exchange(before, std::string(indent, ' ')) + part);
  }
}

void Output::document(const Value& value) {
  if (json()) text_ += strict_json(value, 1) + "\n";
}

int Output::finish(int code) {
  const std::string text = std::exchange(text_, "");
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, rest.data(), rest.size());
    if (written >= 0) rest.remove_prefix(static_cast<size_t>(written));
    else if (errno == EPIPE) return exit_closed_pipe;
    else if (errno != EINTR) {
      say(std::string("cannot write the output: ") + std::strerror(errno));
      return exit_failed;
    }
  }
  return code;
}

std::string strict_json(const Value& value, int indent) {
  const std::string text = to_json(without_infinities(value), indent);
  // Only strings hold characters beyond ASCII, so they can be escaped wherever they stand.
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const base::CodePoint c = base::code_point_at(text, at);
    if (c.code < 0x7f) out += text[at];
    else if (c.code < 0x10000) out += fmt::format("\\u{:04x}", c.code);
    else
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((c.code - 0x10000) >> 10),
                         0xdc00 + ((c.code - 0x10000) & 0x3ff));
    at += c.bytes;
  }
  return out;
}

Progress::Progress()
    : next_(std::chrono::steady_clock::now() + std::chrono::seconds(1)),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_ && shown_) static_cast<void>(!::write(STDERR_FILENO, "\r\033[K", 4));
}

void Progress::show(std::string_view text) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000));
  std::string line = "ejk: " + printable(text);
  if (terminal_) line = "\r\033[K" + cut(line, 78);
  else line += "\n";
  shown_ = true;
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

StillWorking::StillWorking(std::string what)
    : thread_([what = std::move(what)](const std::stop_token& stop) {
        Progress progress;
        std::mutex mutex;
        std::condition_variable_any ended;
        std::unique_lock lock(mutex);
        for (int tenths = 0; !stop.stop_requested(); ++tenths) {
          ended.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
          progress.show(what + fmt::format(" ({} s)", tenths / 10));
        }
      }) {}

}  // namespace ejk::cli
