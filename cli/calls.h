// SPDX-License-Identifier: Apache-2.0
// Calls that the tool can make: recorded ones, and one given on the command line.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ejk/record.h>
#include <ejk/registry.h>
#include <ejk/selector.h>

#include "stores.h"

namespace ejk::cli {

// Makes the built-in operations and the kernels of shared libraries known.
void load_plugins(const KernelOptions& options);

// The folder of recorded calls, or the database. Throws Failure if there is no place for one.
std::string recorded_folder(const KernelOptions& options);
// The same with what to do if nothing is in it: "FOLDER (...)".
std::string where_to_record(const KernelOptions& options);
// Throws Failure(nothing) if a folder that was named is not there.
void check_recorded_folder(const KernelOptions& options);
// What is in it. `store`: of the same options. Throws as that does.
std::vector<RecordedCall> recorded_calls(const KernelOptions& options, const PersistentCache& store,
                                         const Filter& filter, Problems& problems);

// A call of the kernel that is known as `op`, with arguments from the command line: "f32[512,512]",
// "i32[64]:0..1023" (its elements are in that range), "some(ARG)" and "null" for optional
// arguments, and values as JSON; a word that is no JSON is a string. Its arrays live on `device`.
// Throws Failure(usage).
RecordedCall call_from_line(const std::string& op, const std::vector<std::string>& args,
                            const Device& device);

// The same, ready to run. Throws Failure(usage) if its kernel does not take these arguments.
std::unique_ptr<RebuiltCall> make_line_call(const RecordedCall& call);

EntryId id_of(const Invocation& inv);

// The shared libraries of kernels, as another process finds them too.
std::vector<std::string> plugin_paths(const KernelOptions& options);

// How far a tuning is, as one line.
std::string progress_text(const TuneProgress& p);

// A selector for this store that shows its progress and ends with Ctrl-C.
std::shared_ptr<ConfigSelectorChain> selector_for(std::shared_ptr<PersistentCache> store,
                                                  const AutotunePolicy& policy, Progress& progress);

}  // namespace ejk::cli
