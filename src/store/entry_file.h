// SPDX-License-Identifier: Apache-2.0
// The text of an entry's file: its document without the candidates, and behind it a document of
// these, so that who needs the choice alone reads no further. Each ends with its own checksum.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ejk/store.h>

#include "base/or_why.h"

namespace ejk::detail {

inline constexpr size_t max_entry_bytes = size_t{16} << 20;
// The last bytes of a document: nothing inside begins at the margin, and strings have no newlines.
inline constexpr std::string_view end_of_document = "\n}\n";

// Without checksums if the entry is not trusted. Nothing if it could not be read back: no NaN-like
// surprises from a hand-made number, no nesting deeper than the reader takes.
base::OrWhy<std::string> entry_text(const Entry& entry);

// What a text turned out to be.
struct ReadEntry {
  enum class Status {
    entry,
    broken,   // not an entry
    altered,  // not what was written
    newer,    // of a schema that this version does not know
  };
  Status status;
  std::optional<Entry> entry = {};
  std::string why = {};            // there is no entry
  std::string no_candidates = {};  // why those that are there cannot be read
};

// `text` may end anywhere behind its first document if only the choice is asked for.
ReadEntry read_entry(std::string_view text, Detail detail);

}  // namespace ejk::detail
