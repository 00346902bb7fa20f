// SPDX-License-Identifier: Apache-2.0
// By which bytes that changed by accident are told from what was written. For names that strangers
// could make collide, sha256.h.
#pragma once

#include <string>
#include <string_view>

namespace ejk::base {

std::string digest_of(std::string_view bytes);          // "xxh3:" and 16 hex digits
std::string name_by_digest_of(std::string_view bytes);  // 32 hex digits

}  // namespace ejk::base
