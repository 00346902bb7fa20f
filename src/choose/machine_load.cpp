// SPDX-License-Identifier: Apache-2.0
// Reads how long the processors of this process were idle.
#include "choose/machine_load.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "base/thrown.h"
#include "base/time.h"

namespace ejk::detail {
namespace {

// The next number of a line, which loses it.
std::optional<double> next_number(std::string_view& line) {
  const size_t begin = line.find_first_not_of(' ');
  if (begin == line.npos) return std::nullopt;
  line.remove_prefix(begin);
  double number = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (error != std::errc{}) return std::nullopt;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  return number;
}

// Of "cpu1 user nice system idle iowait ...": the last two. nullopt: it is another line, or of a
// processor that does not count.
std::optional<double> idle_ticks(std::string_view line, const cpu_set_t& processors) {
  constexpr std::string_view begin = "cpu";
  if (!line.starts_with(begin) || line.starts_with("cpu ")) return std::nullopt;
  line.remove_prefix(begin.size());
  const auto processor = next_number(line);
  if (!processor || *processor >= CPU_SETSIZE ||
      !CPU_ISSET(static_cast<size_t>(*processor), &processors))
    return std::nullopt;
  for (int used = 0; used < 3; ++used)
    if (!next_number(line)) return std::nullopt;
  const auto idle = next_number(line);
  if (!idle) return std::nullopt;
  return *idle + next_number(line).value_or(0);
}

std::optional<double> idle_seconds_now() {
  cpu_set_t own;
  CPU_ZERO(&own);
  if (::sched_getaffinity(0, sizeof own, &own) != 0) return std::nullopt;
  std::ostringstream text;
  text << std::ifstream("/proc/stat").rdbuf();
  return idle_seconds(text.view(), own, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

}  // namespace

std::optional<double> idle_seconds(std::string_view stat, const cpu_set_t& processors,
                                   double ticks_per_second) {
  std::optional<double> ticks;
  while (!stat.empty()) {
    const size_t end = std::min(stat.find('\n'), stat.size());
    if (const auto idle = idle_ticks(stat.substr(0, end), processors))
      ticks = ticks.value_or(0) + *idle;
    stat.remove_prefix(std::min(end + 1, stat.size()));
  }
  if (!ticks) return std::nullopt;
  return *ticks / ticks_per_second;
}

MachineLoad::MachineLoad() : MachineLoad(base::seconds_now, idle_seconds_now) {}

MachineLoad::MachineLoad(std::function<double()> clock, std::function<std::optional<double>()> idle)
    : clock_(std::move(clock)), idle_(std::move(idle)) {}

bool MachineLoad::is_busy(double seconds) {
  constexpr double min_apart = 0.2;    // seconds: ticks are 10 ms long
  constexpr double enough_free = 0.5;  // cores
  const double now = clock_();
  if (looked_ && now - *looked_ < min_apart) return busy_;
  const auto idle = idle_();
  if (!idle) return false;
  busy_ = !looked_ || now - *looked_ > std::max(seconds, recently) ||
          (*idle - idle_then_) / (now - *looked_) < enough_free;
  looked_ = now, idle_then_ = *idle;
  return busy_;
}

std::function<bool(double)> busy_question(std::function<bool()> given) {
  if (!given)
    return
        [load = std::make_shared<MachineLoad>()](double seconds) { return load->is_busy(seconds); };
  return [given = std::move(given)](double) {
    try {
      return given();
    } catch (...) {  // it cannot tell: better not to disturb, and no false alarm
      static_cast<void>(base::what_was_thrown());
      return true;
    }
  };
}

}  // namespace ejk::detail
