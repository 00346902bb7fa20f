// SPDX-License-Identifier: Apache-2.0
// A tuning in a process of its own, which computes only when no other program wants to.
#pragma once

#include <ejk/tuner.h>

#include "base/or_why.h"
#include "choose/background.h"

namespace ejk::detail {

// How long to rest so that work takes no more than its share of the time. Short rests are saved up:
// what has just run is still in the caches.
class DutyCycle {
 public:
  explicit DutyCycle(double share) : share_(share) {}
  // After so much more work; 0: go on.
  double rest_after(double work_seconds);

 private:
  static constexpr double min_work = 10e-3;
  double share_, work_ = 0;
};

// What the tuner finds for the task in a fork of this process. Nothing if the fork ended without a
// result, or gave no sign of life for `silence` seconds, or, with "" as the reason, if it had to
// give way.
base::OrWhy<TuneResult> tune_in_process(Tuner& tuner, TuneTask task, const Background::Turn& turn,
                                        double silence = 60);

}  // namespace ejk::detail
