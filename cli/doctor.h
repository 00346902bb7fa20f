// SPDX-License-Identifier: Apache-2.0
// `ejk doctor --selftest`: the library's kernels on the devices that are here.
#pragma once

#include <string>

#include "output.h"

namespace ejk::cli {

// Of this platform only; "": of all that have devices.
int doctor_selftest(const std::string& only, Output& out);

}  // namespace ejk::cli
