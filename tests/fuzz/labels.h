// SPDX-License-Identifier: Apache-2.0
// What must hold for the labels of any bytes; the fuzzer and a property test both check it.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include <ejk/labels.h>

#include "fuzz.h"

namespace fuzz {

inline void check_labels(std::string_view bytes) {
  const ejk::FoundLabels found = ejk::find_labels(bytes, {.prefixes = {"own\"\xC3\xA4", "x"}});
  std::set<std::string> seen;
  for (const ejk::Label& label : found.labels) {
    demand(seen.insert(label.text).second, "a label is there twice");
    demand(label.count > 0, "a label has no count");
    demand(!label.op.empty() && !label.prefix.empty(), "a label has an empty part");
    if (label.truncated) demand(label.key.empty(), "a truncated label has a key");
    else {
      demand(label.key.size() == 16, "a key has another length");
      demand(label.text == ejk::make_label(label.op, label.key, label.prefix),
             "a label is not made of its parts");
    }
  }
  static_cast<void>(ejk::parse_label(bytes));
}

}  // namespace fuzz
