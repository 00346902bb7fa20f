// SPDX-License-Identifier: Apache-2.0
// Guesses, spaces and limits of RowConfig.
#pragma once

#include <string_view>

#include <ejk/invocation.h>
#include <ejk/ops/row_config.h>
#include <ejk/space.h>

namespace ejk::ops {

// Argument 0 is the matrix whose rows are worked on.
RowConfig heuristic_row_config(const Invocation& inv);
Space<RowConfig> row_config_space(const Invocation& inv);
bool row_config_is_valid(const RowConfig& config);
void check_row_config(std::string_view op, const RowConfig& config);

}  // namespace ejk::ops

// The hooks that all kernels over rows share, for both element types.
#define EJK_ROW_KERNEL(Kernel)                                                 \
  template <class T>                                                           \
  RowConfig Kernel<T>::heuristic_cfg(const Invocation& inv) const {            \
    return heuristic_row_config(inv);                                          \
  }                                                                            \
  template <class T>                                                           \
  Space<RowConfig> Kernel<T>::candidate_cfgs(const Invocation& inv) const {    \
    return row_config_space(inv);                                              \
  }                                                                            \
  template <class T>                                                           \
  bool Kernel<T>::is_valid(const RowConfig& config, const Invocation&) const { \
    return row_config_is_valid(config);                                        \
  }                                                                            \
  template struct Kernel<float>;                                               \
  template struct Kernel<BFloat16>
