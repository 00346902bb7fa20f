// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file that `ejk import` reads: an export, an entry, a cache of ejkernel.
#include <string>

#include <ejk/error.h>
#include <ejk/value.h>

#include "foreign.h"
#include "fuzz.h"

void fuzz::check(std::string_view bytes) {
  size_t told = 0;
  const auto warn = [&](const std::string&) { ++told; };
  try {
    const auto counts = ejk::cli::read_foreign_text(
        std::string(bytes), {.with_heuristics = true}, warn, [](const ejk::Entry& entry) {
          const ejk::EntryId& id = entry.id;
          demand(id.spec.empty() || id.key == ejk::short_hash(std::string_view(id.spec)) ||
                     id.spec == ejk::stable_json(ejk::Value::object({{"key", id.key}})),
                 "an entry would take the place of another call's");
          static_cast<void>(ejk::entry_to_document(entry));
          return true;
        });
    demand(counts.damaged >= told, "more is told than is damaged");
  } catch (const ejk::Error&) {
  }
}
