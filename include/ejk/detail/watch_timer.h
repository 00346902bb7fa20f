// SPDX-License-Identifier: Apache-2.0
// Times a warm call that is watched.
#pragma once

#include <exception>
#include <utility>

#include <ejk/detail/export.h>
#include <ejk/selector.h>

namespace EJK_EXPORT ejk {
namespace detail {

// Tells the chain how long it lived; TuneAgain is called if the chain wants the call tuned again. A
// run that throws does not count.
template <class TuneAgain>
class WatchTimer {
 public:
  WatchTimer(ConfigSelectorChain& chain, WatchedCall& call, TuneAgain tune_again)
      : chain_(chain), call_(call), tune_again_(std::move(tune_again)) {}
  ~WatchTimer() {
    if (std::uncaught_exceptions() != exceptions_) return;
    const double seconds = chain_.watch_seconds() - start_;
    try {
      if (chain_.saw_run(call_, seconds)) tune_again_();
    } catch (...) {  // NOLINT: the call itself went well
    }
  }
  WatchTimer(const WatchTimer&) = delete;
  WatchTimer& operator=(const WatchTimer&) = delete;

 private:
  ConfigSelectorChain& chain_;
  WatchedCall& call_;
  TuneAgain tune_again_;
  int exceptions_ = std::uncaught_exceptions();
  double start_ = chain_.watch_seconds();  // last: what comes before it is not part of the run
};

}  // namespace detail
}  // namespace ejk
