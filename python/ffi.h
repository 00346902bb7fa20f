// SPDX-License-Identifier: Apache-2.0
// Built-in operations as a custom call of XLA.
#pragma once

#include <nanobind/nanobind.h>

namespace ejk::python {

// A capsule for jax.ffi.register_ffi_target. The call has one attribute, `call`: the JSON text of
//   {"op", "dtype", "config", "options", "pull": bool, "rank": of the first result}
// and the arrays that NamedOp::run or pull takes. Axes before those (vmap's) make it that many
// calls; an array whose axis there is 1 serves all of them.
nanobind::object ffi_handler();
nanobind::object ffi_version();

}  // namespace ejk::python
