// SPDX-License-Identifier: Apache-2.0
// Reads states and context switches of threads from /proc.
#include "guard/stillness.h"

#include <string_view>
#include <utility>

#include "base/file.h"

namespace ejk::detail {
namespace {

// The value of a line "NAME:\tVALUE"; "" if there is none.
std::string_view field(std::string_view text, std::string_view name) {
  const size_t at = text.find(name);
  if (at == text.npos) return {};
  const size_t begin = at + name.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

// Changes whenever the thread has run; "" if it does not sleep.
std::string sleep_of(const std::string& task) {
  const std::string status = base::read_file(task + "/status", 1 << 16).text;
  const std::string_view switches = field(status, "\nvoluntary_ctxt_switches:\t");
  if (!field(status, "\nState:\t").starts_with('S') || switches.empty()) return {};
  return task + ' ' + std::string(switches) + ' ' +
         std::string(field(status, "\nnonvoluntary_ctxt_switches:\t")) + '\n';
}

// Of all threads; "" if one of them does not sleep.
std::string sleep_of_all(const std::string& tasks) {
  std::string all;
  for (const std::string& task : base::list_directory(tasks)) {
    const std::string sleep = sleep_of(tasks + '/' + task);
    if (sleep.empty()) return {};
    all += sleep;
  }
  return all;
}

}  // namespace

Stillness::Stillness(pid_t process) : tasks_("/proc/" + std::to_string(process) + "/task") {}

bool Stillness::look() {
  std::string now = sleep_of_all(tasks_);
  const bool same = !now.empty() && now == seen_;
  seen_ = std::move(now);
  return same;
}

}  // namespace ejk::detail
