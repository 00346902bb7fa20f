// SPDX-License-Identifier: Apache-2.0
// What the operations over the last axis (rms_norm, layer_norm, softmax) can be run with.
#pragma once

#include <string_view>

#include <ejk/detail/export.h>
#include <ejk/invocation.h>
#include <ejk/space.h>

namespace EJK_EXPORT ejk {
namespace ops {

// No field changes a result by a bit.
struct RowConfig {
  int threads = 1;        // that share the rows
  bool streamed = false;  // writes past the caches: for outputs that do not stay in them anyway
  bool ahead = false;     // begins with the next row while a row is written
  // Of the gradient. Measured where the policy says validate_backward, else a guess.
  struct Backward {
    // As in the forward pass.
    int threads = 1;
    bool streamed = false;
  };
  Backward backward = {};  // see above
};

// On OpenCL and CUDA devices. Fields change results by rounding only.
struct RowGpuConfig {
  int group = 1;      // items that share a row, a power of two
  int rows = 1;       // that a group works on, one after the other
  int width = 4;      // elements that an item reads at once: 1, 2, 4, 8 or 16
  bool keep = false;  // items keep what they read of a row, else they read it again
};

// What the kernels have in common: which of these configs there are for a call, whose first
// argument is the matrix of rows.
struct RowKernel {
  using Config = RowConfig;
  using GpuConfig = RowGpuConfig;
  Config heuristic_cfg(const Invocation& inv) const;
  Space<Config> candidate_cfgs(const Invocation& inv) const;
  bool is_valid(const Config& config, const Invocation& inv) const;
  // One class: no field changes a result or a gradient.
  std::string_view numerics(const Config&) const { return "all"; }

  GpuConfig heuristic_cfg_gpu(const Invocation& inv) const;
  Space<GpuConfig> candidate_cfgs_gpu(const Invocation& inv) const;
  bool is_valid(const GpuConfig& config, const Invocation& inv) const;
};

}  // namespace ops
}  // namespace ejk
