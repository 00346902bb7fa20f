// SPDX-License-Identifier: Apache-2.0
// The verbs: what each is told on the command line, and the function that does it. Each returns an
// exit code or throws Failure or Error.
#pragma once

#include <string>
#include <vector>

#include "output.h"
#include "stores.h"

namespace ejk::cli {

struct DevicesOptions {};
int devices_verb(const DevicesOptions&, Output& out);

struct LsOptions {
  std::string store;
  Filter filter;
  bool all = false;  // hidden ones too
};
int ls_verb(const LsOptions&, Output& out);

struct ShowOptions {
  std::string store;
  Filter filter;
  int candidates = 20;  // at most so many; 0: all
};
int show_verb(const ShowOptions&, Output& out);

struct ExportOptions {
  std::string store;
  Filter filter;
  std::string file = "-";
  bool without_candidates = false;
};
int export_verb(const ExportOptions&, Output& out);

struct ImportOptions {
  std::string store;
  std::vector<std::string> files;
  std::string as_device;  // file entries under this device
  bool replace = false;
  bool dry_run = false;
  bool with_heuristics = false;
};
int import_verb(const ImportOptions&, Output& out);

struct MergeOptions {
  std::string into;
  std::vector<std::string> from;
  bool dry_run = false;
};
int merge_verb(const MergeOptions&, Output& out);

struct PruneOptions {
  std::string store;
  Filter filter;
  std::string older_than;  // "30d"
  bool failed = false;
  bool other_devices = false;
  bool old_versions = false;
  bool damaged = false;
  bool all = false;
  bool dry_run = false;
};
int prune_verb(const PruneOptions&, Output& out);

struct QuarantineOptions {
  std::string store;
  std::string op;
  bool all = false;
};
int quarantine_ls_verb(const QuarantineOptions&, Output& out);
int quarantine_clear_verb(const QuarantineOptions&, Output& out);

struct StoreOptions {
  std::string store;  // of push: what is sent; else a directory or a URL
  std::string url;
  bool all = false;  // of push: not only what is in the outbox
};
int store_init_verb(const StoreOptions&, Output& out);
int store_check_verb(const StoreOptions&, Output& out);
int store_upgrade_verb(const StoreOptions&, Output& out);
int store_push_verb(const StoreOptions&, Output& out);

struct SnapshotOptions {
  std::string store;
  Filter filter;
  std::string name;  // HASH, PLACE#HASH; of show also a file
  std::string file;  // of publish and fetch; "": the store
};
int snapshot_publish_verb(const SnapshotOptions&, Output& out);
int snapshot_fetch_verb(const SnapshotOptions&, Output& out);
int snapshot_show_verb(const SnapshotOptions&, Output& out);

struct DoctorOptions {
  std::string store;
  double seconds = 1;  // of the noise measurement; 0: none
  std::string root = "/";
  bool selftest = false;  // the library's kernels on devices instead
  std::string platform;   // of them; empty: all
};
int doctor_verb(const DoctorOptions&, Output& out);
int doctor_selftest(const DoctorOptions&, Output& out);

// The store, where its recorded calls are, and who runs them.
struct KernelOptions {
  std::string store;
  std::string recorded;              // folder; default: that of the store
  std::vector<std::string> plugins;  // shared libraries of kernels
};

struct ExplainOptions {
  Filter filter;
  KernelOptions kernels;
};
int explain_verb(const ExplainOptions&, Output& out);

struct LabelsOptions {
  std::string store;
  std::vector<std::string> files;
  std::vector<std::string> prefixes;
};
int labels_verb(const LabelsOptions&, Output& out);

struct TuneOptions {
  KernelOptions kernels;
  bool all_recorded = false;
  std::string lowered;  // file or dump folder
  std::vector<std::string> prefixes;
  std::string op;                 // of a call given on the line
  std::vector<std::string> args;  // of it: f32[512,512], 3, true, "text"
  std::string device;             // where it is tuned; of recorded calls: only those
  std::vector<std::string> ops;   // of recorded calls: only these
  double budget = 0;              // seconds for all of them; 0: any
  double budget_per_call = 10;
  double deadline = 60;  // seconds beyond its budget, for a worker
  std::string worker;    // command of a worker for kernels that are not known here
  bool in_process = false;
  bool retune = false;
  bool same_numerics = false;
  bool dry_run = false;
  bool share = false;  // of recorded calls: with other processes
  std::string shard;   // "I/N": which part of them, or where this process begins
  bool serve = false;  // a page that shows it
  std::string listen = "127.0.0.1:0";
};
int tune_verb(const TuneOptions&, Output& out);

// What `ejk tune` starts to tune in: docs/reference/worker.md says what it reads and writes.
int worker_verb();

struct BenchOptions {
  KernelOptions kernels;
  Filter filter;
  std::string op;
  std::vector<std::string> args;
  double seconds = 2;  // for each call
};
int bench_verb(const BenchOptions&, Output& out);

struct WhatIfOptions {
  std::string device = "this";  // that recorded them
  KernelOptions kernels;
  std::vector<std::string> ops;
  double min_coverage = 0;  // percent of the time, and of calls without; below it: exit code 4
};
int what_if_verb(const WhatIfOptions&, Output& out);

struct TopOptions {
  std::string device = "this";  // that recorded them
  KernelOptions kernels;
  std::vector<std::string> ops;
  int number = 10;  // list at most so many; 0: all
};
int top_verb(const TopOptions&, Output& out);

struct FleetOptions {
  Filter filter;
  KernelOptions kernels;
};
int fleet_status_verb(const FleetOptions&, Output& out);

struct ReportOptions {
  Filter filter;
  KernelOptions kernels;
  std::string file = "ejk-report.html";
};
int report_verb(const ReportOptions&, Output& out);

struct ServeOptions {
  Filter filter;
  KernelOptions kernels;
  std::string listen = "127.0.0.1:0";
};
int serve_verb(const ServeOptions&, Output& out);

}  // namespace ejk::cli
