// SPDX-License-Identifier: Apache-2.0
// The last member of an entry's document, by which a changed file is told from what was written.
#pragma once

#include <string>
#include <string_view>

#include <ejk/value.h>

namespace ejk::detail {

// `text`: a document as to_json(document, 1) + "\n" gives it.
std::string with_checksum(std::string text);

enum class Checksum { right, wrong, absent };
Checksum checksum_of(std::string_view text, const Value& document);

}  // namespace ejk::detail
