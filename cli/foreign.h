// SPDX-License-Identifier: Apache-2.0
// Entries from anywhere: exports, stores, single entries, and the caches of the Python package
// `ejkernel`.
#pragma once

#include <functional>
#include <string>

#include <ejk/store.h>

namespace ejk::cli {

// The first line of an export is an object with this member; each further line is an entry.
inline constexpr const char* export_member = "ejk_export";
inline constexpr int export_version = 1;

struct ForeignOptions {
  bool with_heuristics = false;  // also what a cache of ejkernel says is only a heuristic
};
struct ForeignCounts {
  size_t damaged = 0;     // could not be read
  size_t heuristics = 0;  // passed over
};

// Visits every entry of a file, a store or a folder with caches of ejkernel, until `visit` returns
// false. What cannot be read is reported to `warn` and counted. Throws Failure if nothing there can
// be.
ForeignCounts read_foreign(const std::string& path, const ForeignOptions& options,
                           const WarningSink& warn, const std::function<bool(const Entry&)>& visit);
// The same of the text of a file. Throws Error(parse).
ForeignCounts read_foreign_text(const std::string& text, const ForeignOptions& options,
                                const WarningSink& warn,
                                const std::function<bool(const Entry&)>& visit);

// An entry of a cache of ejkernel from the name of its member, "DEVICE|OP|KEY". Both DEVICE (at
// most one '|' in it: "cpu|cpu") and OP may hold '|'. Throws Error(parse).
EntryId ejkernel_id(const std::string& name);

}  // namespace ejk::cli
