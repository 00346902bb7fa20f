// SPDX-License-Identifier: Apache-2.0
// Whether configs of one call give what its reference gives; nothing is measured.
#pragma once

#include <optional>
#include <string>

#include "tune/output_check.h"

namespace ejk::detail {

class ReferenceCheck {
 public:
  // Runs the reference; the trial must outlive this. Throws Error(invalid_argument) if there is
  // none.
  explicit ReferenceCheck(Trial& trial, const Expected::Tolerances& tolerance = {});
  // With another's outputs in place of the reference's.
  ReferenceCheck(Trial& trial, std::vector<OutputBytes> outputs,
                 const Expected::Tolerances& tolerance = {});

  // What is wrong with a run, for people; nullopt: nothing. An exception is one of those things.
  std::optional<std::string> problem_with(const AnyConfig& config);

 private:
  Trial& trial_;
  Expected expected_;
};

}  // namespace ejk::detail
