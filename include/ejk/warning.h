// SPDX-License-Identifier: Apache-2.0
// Where warnings go.
#pragma once

#include <functional>
#include <string>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {

// Hears what this library has to say, in one line of at most 1000 bytes without control characters.
using WarningSink = std::function<void(const std::string& message)>;
// Writes "ejk: MESSAGE" to stderr unless EJKERNEL_LOG=0 was set when first used.
WarningSink stderr_warnings();

}  // namespace ejk
