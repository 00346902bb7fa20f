// SPDX-License-Identifier: Apache-2.0
// What the operations over the last axis (rms_norm, layer_norm, softmax) can be run with.
#pragma once

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

}  // namespace ejk::ops
