// SPDX-License-Identifier: Apache-2.0
// What the operations over the last axis (rms_norm, layer_norm, softmax) can be run with.
#pragma once

#include <ejk/invocation.h>
#include <ejk/space.h>

namespace ejk::ops {

// No field changes a result by a bit.
struct RowConfig {
  int threads = 1;
  bool streamed = false;  // writes past the caches: for outputs that do not stay in them anyway
  bool ahead = false;     // begins with the next row while a row is written
  // Of the gradient. Measured where the policy says validate_backward, else a guess.
  struct Backward {
    int threads = 1;
    bool streamed = false;
  };
  Backward backward = {};
};

// What the kernels have in common: which of these configs there are for a call, whose first
// argument is the matrix of rows.
struct RowKernel {
  using Config = RowConfig;
  Config heuristic_cfg(const Invocation& inv) const;
  Space<Config> candidate_cfgs(const Invocation& inv) const;
  bool is_valid(const Config& config, const Invocation& inv) const;
};

}  // namespace ejk::ops
