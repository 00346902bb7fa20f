// SPDX-License-Identifier: Apache-2.0
// The verbs, in the order of the help: each file has what a verb takes on the command line and the
// function that does it, which returns an exit code or throws Failure or Error.
#pragma once

#include "line.h"

namespace ejk::cli {

void add_devices(Verbs& verbs);
void add_ls(Verbs& verbs);
void add_show(Verbs& verbs);
void add_explain(Verbs& verbs);
void add_labels(Verbs& verbs);
void add_what_if(Verbs& verbs);
void add_top(Verbs& verbs);
void add_report(Verbs& verbs);
void add_serve(Verbs& verbs);
void add_doctor(Verbs& verbs);
void add_tune(Verbs& verbs);
void add_fleet(Verbs& verbs);
void add_worker(Verbs& verbs);
void add_bench(Verbs& verbs);
void add_export(Verbs& verbs);
void add_import(Verbs& verbs);
void add_merge(Verbs& verbs);
void add_prune(Verbs& verbs);
void add_snapshot(Verbs& verbs);
void add_store(Verbs& verbs);
void add_quarantine(Verbs& verbs);

inline constexpr auto add_verbs = {
    add_devices, add_ls,     add_show,   add_explain, add_labels,   add_what_if, add_top,
    add_report,  add_serve,  add_doctor, add_tune,    add_fleet,    add_worker,  add_bench,
    add_export,  add_import, add_merge,  add_prune,   add_snapshot, add_store,   add_quarantine};

}  // namespace ejk::cli
