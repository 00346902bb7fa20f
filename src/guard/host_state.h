// SPDX-License-Identifier: Apache-2.0
// What a run shares with everything else in its process, and must leave as it was.
#pragma once

#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <sys/types.h>

#include <array>
#include <locale>
#include <optional>
#include <string>
#include <vector>

namespace ejk::detail {

// As it was when this was made. `put_back` says for people what is different now, "" if nothing is,
// and makes it what it was.

// Of the calling thread: rounding, flush-to-zero, traps; the signal mask; the locale. Costs less
// than a microsecond.
class ThreadState {
 public:
  ThreadState();
  std::string put_back() const;

 private:
  fenv_t floats_{};
  sigset_t blocked_{};
  locale_t locale_;
};

// Of the process: signal handlers, working directory, umask, locale, environment. Costs tens of
// microseconds. Another thread may change them too: who asks must know whether there is one.
class ProcessState {
 public:
  ProcessState();
  std::string put_back() const;

 private:
  std::array<struct sigaction, NSIG> handlers_{};
  std::string directory_;        // "": not known
  std::optional<mode_t> umask_;  // where the system tells it
  std::string c_locale_;
  std::locale locale_;
  std::vector<std::string> environment_;
};

// "a, b"; one of them may be "".
std::string joined(std::string a, const std::string& b);

}  // namespace ejk::detail
