// SPDX-License-Identifier: Apache-2.0
// Runs a config once and compares what it leaves with the reference's.
#include "tune/reference_check.h"

#include <utility>

namespace ejk::detail {
namespace {

std::vector<OutputBytes> untouched(Trial& trial) {
  trial.reset();
  return trial.outputs();
}

std::vector<OutputBytes> of_reference(Trial& trial) {
  trial.reset();
  if (!trial.run_reference())
    throw Error(ErrorKind::invalid_argument, "[check] the kernel has no reference");
  return trial.outputs();
}

}  // namespace

ReferenceCheck::ReferenceCheck(Trial& trial, const Expected::Tolerances& tolerance)
    : ReferenceCheck(trial, of_reference(trial), tolerance) {}

ReferenceCheck::ReferenceCheck(Trial& trial, std::vector<OutputBytes> outputs,
                               const Expected::Tolerances& tolerance)
    : trial_(trial), expected_(untouched(trial), std::move(outputs), tolerance) {}

std::optional<std::string> ReferenceCheck::problem_with(const AnyConfig& config) {
  try {
    trial_.reset();
    trial_.run(config);
    trial_.wait();
    if (auto beside = trial_.overrun()) return beside;
    return expected_.difference(trial_.outputs());
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace ejk::detail
