// SPDX-License-Identifier: Apache-2.0
// Tells whether a candidate's outputs are the expected ones.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ejk/tuner.h>

namespace ejk::detail {

using SharedOutputs = std::shared_ptr<const std::vector<OutputBytes>>;

// What every candidate's outputs are compared with.
class Expected {
 public:
  // `untouched`: the outputs after reset() and before any run, where poison stands.
  // `outputs`: what the reference left.
  // `tolerance`: of a type, where it is not the usual one.
  using Tolerances = std::function<std::optional<Tolerance>(DType)>;
  Expected(std::vector<OutputBytes> untouched, std::vector<OutputBytes> outputs,
           const Tolerances& tolerance = {});
  // The same without a copy of what is untouched, which can be large.
  static Expected sharing(SharedOutputs untouched, std::vector<OutputBytes> outputs,
                          const Tolerances& tolerance);

  // nullopt if `got` agrees: integers and bools exactly, floating types within a tolerance that is
  // relative to the element and to the usual size of the elements; NaN and infinities in the same
  // places. Else what differs, for people.
  std::optional<std::string> difference(const std::vector<OutputBytes>& got) const;

 private:
  SharedOutputs untouched_;
  std::vector<OutputBytes> outputs_;
  std::vector<double> scales_;         // usual magnitude of each output's elements
  std::vector<Tolerance> tolerances_;  // of each output
};

bool same_bytes(const std::vector<OutputBytes>& a, const std::vector<OutputBytes>& b);

}  // namespace ejk::detail
