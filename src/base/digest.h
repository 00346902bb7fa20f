// SPDX-License-Identifier: Apache-2.0
// By which bytes that changed by accident are told from what was written; for names, sha256.h.
#pragma once

#include <string>
#include <string_view>

namespace ejk::base {

std::string digest_of(std::string_view bytes);  // "xxh3:" and 16 hex digits

}  // namespace ejk::base
