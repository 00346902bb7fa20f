// SPDX-License-Identifier: Apache-2.0
// The built-in operations by name.
#pragma once

namespace ejk::cli {

// Makes the kernels of ejk/ops.h known, so that their recorded calls can be made again.
void register_ops();

}  // namespace ejk::cli
