// SPDX-License-Identifier: Apache-2.0
// Reads, compares and puts back the modes of a thread and the settings of a process.
#include "guard/host_state.h"
#include "base/process.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>

#include "base/file.h"

namespace ejk::detail {
namespace {

// ---- a thread ----------------------------------------------------------------------------------

// Without the flags that any operation raises.
struct FloatModes {
  uint64_t rounding, flush, traps;
};

FloatModes modes_of(const fenv_t& e) {
#if defined(__x86_64__)
  const uint64_t sse = e.__mxcsr, x87 = e.__control_word;
  return {(sse & 0x6000) | (x87 & 0x0f00), sse & 0x8040, (sse & 0x1f80) | (x87 & 0x3f)};
#elif defined(__aarch64__)
  const uint64_t fpcr = e.__fpcr;
  return {fpcr & 0x00c00000, fpcr & 0x01080003, fpcr & 0x00009f00};
#else
  static_cast<void>(e);
  return {static_cast<uint64_t>(::fegetround()), 0, 0};
#endif
}

bool same(const sigset_t& a, const sigset_t& b) {
  for (int s = 1; s < NSIG; ++s)
    if (::sigismember(&a, s) != ::sigismember(&b, s)) return false;
  return true;
}

// ---- a process ---------------------------------------------------------------------------------

bool same(const struct sigaction& a, const struct sigaction& b) {
  constexpr int restorer = 0x04000000;  // the C library's own, there once a handler was ever set
  return a.sa_handler == b.sa_handler && (a.sa_flags | restorer) == (b.sa_flags | restorer) &&
         same(a.sa_mask, b.sa_mask);
}

// A handler that is called once is gone after a signal: no run removed it.
bool was_called(const struct sigaction& before, const struct sigaction& now) {
  return (static_cast<unsigned>(before.sa_flags) & SA_RESETHAND) != 0 && now.sa_handler == SIG_DFL;
}

// The umask can be read in one step from there only: umask() sets it for the other threads too.
std::optional<mode_t> current_umask() {
  const std::string status = base::read_file("/proc/self/status", 1 << 16).text;
  constexpr std::string_view name = "\nUmask:\t";
  const size_t at = status.find(name);
  if (at == status.npos) return std::nullopt;
  return static_cast<mode_t>(std::strtoul(status.c_str() + at + name.size(), nullptr, 8));
}

std::string current_directory() {
  std::error_code unknown;
  return std::filesystem::current_path(unknown).string();
}

// An OpenMP runtime writes there that it has started, which is not a setting.
bool is_setting(std::string_view variable) { return !variable.starts_with("__KMP_REGISTERED_"); }

std::vector<std::string> current_environment() {
  std::vector<std::string> all;
  for (char** v = environ; v != nullptr && *v != nullptr; ++v)
    if (is_setting(*v)) all.emplace_back(*v);
  return all;
}

std::string put_back_environment(std::vector<std::string> before) {
  std::vector<std::string> now = current_environment(), gone, added;
  if (now == before) return {};
  std::ranges::sort(before), std::ranges::sort(now);
  std::ranges::set_difference(before, now, std::back_inserter(gone));
  std::ranges::set_difference(now, before, std::back_inserter(added));
  const auto name_of = [](const std::string& v) { return v.substr(0, v.find('=')); };
  std::set<std::string> names;
  for (const std::string& v : added) names.insert(name_of(v)), ::unsetenv(name_of(v).c_str());
  for (const std::string& v : gone) {
    const std::string name = name_of(v);
    names.insert(name);
    if (name.size() < v.size()) ::setenv(name.c_str(), v.c_str() + name.size() + 1, 1);
  }
  constexpr size_t max_named = 3;
  if (names.size() > max_named) return std::to_string(names.size()) + " environment variables";
  std::string what;
  for (const std::string& name : names) what = joined(what, "the variable " + name);
  return what;
}

}  // namespace

std::string joined(std::string a, const std::string& b) {
  if (!a.empty() && !b.empty()) a += ", ";
  return a + b;
}

ThreadState::ThreadState() : locale_(::uselocale(nullptr)) {
  ::fegetenv(&floats_);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked_);
}

std::string ThreadState::put_back() const {
  std::string what;
  const ThreadState now;
  const FloatModes mine = modes_of(floats_), others = modes_of(now.floats_);
  if (mine.rounding != others.rounding) what = joined(what, "the rounding mode");
  if (mine.flush != others.flush) what = joined(what, "the flush-to-zero mode");
  if (mine.traps != others.traps) what = joined(what, "the floating-point traps");
  if (!what.empty()) ::fesetenv(&floats_);
  if (!same(blocked_, now.blocked_)) {
    what = joined(what, "the signal mask");
    ::pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
  }
  if (locale_ != now.locale_) {
    what = joined(what, "the thread's locale");
    ::uselocale(locale_);
  }
  return what;
}

ProcessState::ProcessState()
    : directory_(current_directory()),
      umask_(current_umask()),
      c_locale_(std::setlocale(LC_ALL, nullptr)),
      environment_(current_environment()) {
  for (int s = 1; s < NSIG; ++s) ::sigaction(s, nullptr, &handlers_[static_cast<size_t>(s)]);
}

std::string ProcessState::put_back() const {
  std::string what;
  for (int s = 1; s < NSIG; ++s) {
    const struct sigaction& before = handlers_[static_cast<size_t>(s)];
    struct sigaction now {};
    if (::sigaction(s, nullptr, &now) != 0 || same(before, now) || was_called(before, now))
      continue;
    what = joined(what, "the handler of " + base::signal_name(s));
    ::sigaction(s, &before, nullptr);
  }
  if (!directory_.empty() && current_directory() != directory_) {
    what = joined(what, "the working directory");
    if (::chdir(directory_.c_str()) != 0) what += " (which is lost)";
  }
  if (umask_ && current_umask() != umask_) {
    what = joined(what, "the umask");
    ::umask(*umask_);
  }
  if (std::locale() != locale_ || std::setlocale(LC_ALL, nullptr) != c_locale_) {
    what = joined(what, "the locale");
    std::locale::global(locale_);
    std::setlocale(LC_ALL, c_locale_.c_str());
  }
  return joined(what, put_back_environment(environment_));
}

}  // namespace ejk::detail
