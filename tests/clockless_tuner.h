// SPDX-License-Identifier: Apache-2.0
// A tuner for tests that takes no time and says that it did.
#pragma once

#include <stdexcept>
#include <vector>

#include "fakes.h"

namespace fakes {

// Says that a tuning took so long, without taking it.
class Clockless : public FakeTuner {
 public:
  ejk::TuneResult tune(const ejk::TuneTask& task) override {
    budgets.push_back(task.budget.seconds);
    known = task.known.size();
    if (throws) throw std::runtime_error("a tuner that fails");
    ejk::TuneResult result = FakeTuner::tune(task);
    result.evidence.complete = complete;
    result.evidence.tuning_seconds = takes;
    return result;
  }
  std::vector<double> budgets;
  size_t known = 0;
  bool complete = false, throws = false;
  double takes = 10;
};

}  // namespace fakes
