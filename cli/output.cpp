// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

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

size_t terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

bool may_be_bold() {
  const char *no_color = std::getenv("NO_COLOR"), *term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == 0) && term != nullptr &&
         std::string_view(term) != "dumb";
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
  return value == "-" || samples < least_samples ? value : value + " (" + low + " to " + high + ")";
}

std::string noise_text(double noise, int samples) {
  return noise > 0 && samples >= least_samples ? "+-" + percent_text(noise) : "-";
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
  for (const char* name : {"batch_axes", "method", "kernel", "objective"})
    if (const Value* member = value.find(name); member && !member->is_null())
      add(std::string(name) + ":" + value_text(*member));
  return out.empty() ? "(no arguments)" : out;
}

std::string Table::text(size_t width, bool bold_titles) const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(columns_of(column.title));
  std::vector<std::vector<std::string>> safe;
  for (const auto& row : rows_) {
    auto& cells = safe.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      cells.push_back(printable(row[i]));
      widths[i] = std::max(widths[i], columns_of(cells[i]));
    }
  }
  const auto line = [&](const auto& cell_of) {
    std::string out;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string space(widths[i] - columns_of(cell), ' ');
      const bool last = i + 1 == columns_.size();
      if (i > 0) out += "  ";
      out += columns_[i].align == Align::right ? space + cell : cell + (last ? "" : space);
    }
    return cut(out, width);
  };
  std::string out = line([&](size_t i) -> const std::string& { return columns_[i].title; });
  if (bold_titles) out = "\033[1m" + out + "\033[0m";
  out += "\n";
  for (const auto& row : safe)
    out += line([&](size_t i) -> const std::string& { return row[i]; }) + "\n";
  return out;
}

Output::Output(bool json)
    : json_(json),
      terminal_(isatty(STDOUT_FILENO) == 1),
      bold_(terminal_ && may_be_bold()),
      width_(terminal_ ? terminal_width() : 0) {}

void Output::line(std::string_view text) {
  if (!json_) text_ += printable(text) + "\n";
}

void Output::table(const Table& table) {
  if (!json_) text_ += table.text(width_, bold_);
}

void Output::facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  size_t width = 0;
  for (const auto& fact : facts) width = std::max(width, fact.first.size());
  for (const auto& [name, value] : facts)
    line(name + std::string(width + 2 - name.size(), ' ') + value);
}

void Output::document(const Value& value) {
  if (json_) text_ += strict_json(value, 1) + "\n";
}

int Output::finish(int code) const {
  std::string_view rest = text_;
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
