// SPDX-License-Identifier: Apache-2.0
// C++ kernels as a custom call of XLA.
#pragma once

#include <nanobind/nanobind.h>

namespace ejk::python {

// A capsule for jax.ffi.register_ffi_target. The call has one attribute, `call`: the JSON text of
//   {"op", "dtype", "config", "options", "pull": bool, "rank": of the first result}
// with the arrays that NamedOp::run or pull takes, or, for a kernel that a library registered,
//   {"registered": op, "config", "arguments", "copies": [[input, result]...], "rank"}
// with the arrays that its arguments name: inputs first, then results; with
//   "pull": {"inputs", "written", "wanted": [argument...]}
// the gradients of arguments, from inputs and cotangents. Axes before those (vmap's) make it that
// many calls; an array whose axis there is 1 serves all of them.
nanobind::object ffi_handler();
nanobind::object ffi_version();

}  // namespace ejk::python
