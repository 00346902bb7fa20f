// SPDX-License-Identifier: Apache-2.0
// The tool `ejk`: reads the command line and calls the verb. Only usage_error.cpp sees CLI11 beside
// it.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <functional>
#include <new>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <ejk/device.h>

#include "base/thrown.h"
#include "manual.h"
#include "usage_error.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

constexpr const char* about =
    "Look at, tune, move and ship the choices that kernels run with.\n"
    "ejk VERB --help explains a verb; man ejk explains all of them.";

// A finite number from `least`, or above it, to `most`.
CLI::Validator number_of(double least, bool above, double most = 0) {
  const auto check = [=](const std::string& text) -> std::string {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool read = error == std::errc() && end == text.data() + text.size();
    if (read && std::isfinite(number) && (above ? number > least : number >= least) &&
        (most == 0 || number <= most))
      return "";
    return "got " + text + "; expected a number " +
           (most != 0 ? fmt::format("from {:g} to {:g}", least, most)
            : above   ? fmt::format("> {:g}", least)
                      : fmt::format(">= {:g}", least));
  };
  return CLI::Validator(check, "", "");
}

// An op may be named as where a key is asked for: NAME: is NAME.
CLI::Validator op_name() {
  const auto strip = [](std::string& text) -> std::string {
    if (text.size() > 1 && text.ends_with(':')) text.pop_back();
    return "";
  };
  return CLI::Validator(strip, "", "");
}

// Help in lines that fit the terminal.
class HelpText : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return item(make_option_name(option, is_positional) + make_option_opts(option),
                make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    return item(verb->get_name(), verb->get_description());
  }

 private:
  static std::string item(const std::string& name, const std::string& text) {
    constexpr size_t indent = 24, least = 30;
    std::string out = "  " + name;
    if (out.size() + 2 > indent) out += "\n";
    const size_t width = std::max(output_width(), indent + least);
    for (const std::string& part : wrapped(text, width - indent)) {
      const size_t used = out.size() - out.rfind('\n') - 1;
      out += std::string(out.ends_with('\n') ? indent : indent - used, ' ') + part + "\n";
    }
    return out;
  }
};

constexpr std::string_view example_title = "Example:\n  ";

// The command line: fills options, remembers which verb is to run.
class Line {
 public:
  Line() : app_(about, "ejk") {
    app_.set_version_flag("--version", "ejk " + std::string(library_version()));
    app_.require_subcommand(0, 1);
    app_.formatter(std::make_shared<HelpText>());
    looking();
    kernels();
    moving();
    keeping();
    about_itself();
  }

  CLI::App& app() { return app_; }
  const std::function<int(Output&)>& verb() const { return verb_; }
  Output::Form form() const {
    return json_ ? Output::Form::json : wide_ ? Output::Form::wide_tables : Output::Form::tables;
  }

  // Verbs without those that only group others.
  std::vector<VerbHelp> help() const {
    std::vector<VerbHelp> out;
    collect(app_, "", out);
    return out;
  }

 private:
  using Run = std::function<int(Output&)>;

  // The example is a line that begins with the verb.
  CLI::App* add(CLI::App& parent, const std::string& name, const std::string& text,
                const std::string& example, Run run) {
    CLI::App* verb = parent.add_subcommand(name, text);
    verb->add_flag("--json", json_, "One JSON document instead of tables");
    verb->add_flag("--wide", wide_, "Tables with one line for each row, however long");
    verb->footer(std::string(example_title) + example);
    verb->callback([this, run = std::move(run)] { verb_ = run; });
    return verb;
  }
  CLI::App* add(const std::string& name, const std::string& text, const std::string& example,
                Run run) {
    return add(app_, name, text, example, std::move(run));
  }

  static void store(CLI::App* verb, std::string& to) {
    verb->add_option("--store", to,
                     "The store: a directory, or postgresql://...; default: "
                     "EJKERNEL_PERSISTENT_CACHE_DIR and its layers")
        ->type_name("DIR");
  }
  static void directory(CLI::App* verb, std::string& to) {
    verb->add_option("--store", to,
                     "The store, a directory; default: EJKERNEL_PERSISTENT_CACHE_DIR")
        ->type_name("DIR");
  }
  static void filter(CLI::App* verb, Filter& to) {
    verb->add_option("--op", to.ops, "Only this op: NAME or NAME@vVERSION; may be repeated")
        ->type_name("OP")
        ->transform(op_name())
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
    device(verb, to.device);
  }
  static void device(CLI::App* verb, std::string& to) {
    verb->add_option(
            "--device", to,
            "Only this device: a name from `ejk devices` such as opencl:0, the beginning of "
            "a fingerprint, or \"this\" for all devices of this machine")
        ->type_name("DEVICE");
  }
  static CLI::Option* listen(CLI::App* verb, std::string& to) {
    return verb
        ->add_option("--listen", to,
                     "The address of the page; port 0 is any free one. An address that other "
                     "machines reach asks for the token in the URL that is printed")
        ->type_name("ADDRESS:PORT")
        ->capture_default_str();
  }
  static void recorded_by(CLI::App* verb, std::vector<std::string>& ops, std::string& of_device) {
    verb->add_option("--op", ops, "Only this op; may be repeated")
        ->type_name("OP")
        ->transform(op_name())
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
    verb->add_option("--device", of_device,
                     "Only calls recorded on this device: its fingerprint, or the beginning of it")
        ->type_name("DEVICE")
        ->capture_default_str();
  }
  static void recorded(CLI::App* verb, KernelOptions& to) {
    verb->add_option(
            "--recorded-in", to.recorded,
            "Folder of recorded calls; default: \"recorded\" in the --store that is given, "
            "else EJKERNEL_OPS_RECORD_DIR, else \"recorded\" in the default store. A database "
            "has the calls that all machines sent")
        ->type_name("DIR");
  }
  static void with_kernels(CLI::App* verb, KernelOptions& to) {
    recorded(verb, to);
    verb->add_option("--plugin", to.plugins, "A shared library of kernels; may be repeated")
        ->type_name("LIB")
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
  }
  static void call(CLI::App* verb, std::string& op, std::vector<std::string>& args) {
    verb->add_option("op", op, "An op whose kernel is known here: NAME or NAME@vVERSION")
        ->type_name("OP")
        ->transform(op_name());
    verb->add_option("--arg", args,
                     "The next argument; give one for each parameter of run. An array is "
                     "f32[512,512], with bounds i32[64]:0..1023, in rising order "
                     "i32[101]:0..800:rising. An optional argument is some(ARG) or null. Any other "
                     "value is JSON")
        ->type_name("ARG")
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
  }
  static void call_device(CLI::App* verb, std::string& to) {
    verb->add_option("--device", to,
                     "The device of the arrays, by its name in `ejk devices` such as opencl:0; "
                     "default: the CPU. With recorded calls: only those of this device; default: "
                     "all devices of this machine")
        ->type_name("DEVICE");
  }

  void looking() {
    add("devices", "List the devices of this machine, with the fingerprints that entries carry",
        "ejk devices", [this](Output& out) { return devices_verb(devices_, out); });

    CLI::App* verb = add("ls", "List the entries of a store", "ejk ls matmul --device this",
                         [this](Output& out) { return ls_verb(ls_, out); });
    verb->add_option("ops", ls_.filter.ops, "Only these ops: NAME or NAME@vVERSION")
        ->type_name("OP")
        ->transform(op_name());
    store(verb, ls_.store);
    device(verb, ls_.filter.device);
    verb->add_flag("--all", ls_.all,
                   "Also entries that do not answer here, because another one does");

    verb = add("show", "Show an entry: config, evidence, every candidate",
               "ejk show matmul:1a2b --candidates 5",
               [this](Output& out) { return show_verb(show_, out); });
    verb->add_option("key", show_.filter.key,
                     "The first digits of a key, OP:KEY, OP: for all of an op, or a label")
        ->type_name("KEY")
        ->required();
    store(verb, show_.store);
    filter(verb, show_.filter);
    verb->add_option("--candidates", show_.candidates, "Show at most so many candidates; 0: all")
        ->type_name("N")
        ->check(number_of(0, false))
        ->capture_default_str();

    verb = add("explain", "Explain which config a call would run with here, tier by tier",
               "ejk explain matmul: --plugin libmy_kernels.so",
               [this](Output& out) { return explain_verb(explain_, out); });
    verb->add_option("key", explain_.filter.key,
                     "The first digits of a key, OP:KEY, OP: for all of an op, or a label")
        ->type_name("KEY")
        ->required();
    store(verb, explain_.kernels.store);
    filter(verb, explain_.filter);
    with_kernels(verb, explain_.kernels);

    verb =
        add("labels", "List the labelled calls in lowered computations", "ejk labels lowered.mlir",
            [this](Output& out) { return labels_verb(labels_, out); });
    verb->add_option("files", labels_.files,
                     "StableHLO, HLO text or proto files, or folders of --xla_dump_to")
        ->type_name("FILE")
        ->required();
    store(verb, labels_.store);
    verb->add_option("--prefix", labels_.prefixes, "A further prefix of labels; may be repeated")
        ->type_name("TEXT")
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);

    verb = add("what-if",
               "Show which recorded calls a store covers, and what tuning the rest may save",
               "ejk what-if --min-coverage 90",
               [this](Output& out) { return what_if_verb(what_if_, out); });
    store(verb, what_if_.kernels.store);
    with_kernels(verb, what_if_.kernels);
    recorded_by(verb, what_if_.ops, what_if_.device);
    verb->add_option(
            "--min-coverage", what_if_.min_coverage,
            "Exit with 4 if the store covers less than this of the recorded time, or of the "
            "calls without one")
        ->type_name("PERCENT")
        ->check(number_of(0, false, 100));

    verb = add("top", "List where the time of recorded calls goes, and what tuning would save",
               "ejk top --number 5", [this](Output& out) { return top_verb(top_, out); });
    store(verb, top_.kernels.store);
    with_kernels(verb, top_.kernels);
    recorded_by(verb, top_.ops, top_.device);
    verb->add_option("--number", top_.number, "List at most so many calls; 0: all")
        ->type_name("N")
        ->check(number_of(0, false))
        ->capture_default_str();

    verb = add("report", "Write a report of a store as one HTML file",
               "ejk report tuned.html --op matmul",
               [this](Output& out) { return report_verb(report_, out); });
    verb->add_option("file", report_.file, "The HTML file")
        ->type_name("FILE")
        ->capture_default_str();
    store(verb, report_.kernels.store);
    filter(verb, report_.filter);
    recorded(verb, report_.kernels);

    verb = add("serve", "Show the report of a store in a browser, as it changes",
               "ejk serve --op matmul", [this](Output& out) { return serve_verb(serve_, out); });
    store(verb, serve_.kernels.store);
    filter(verb, serve_.filter);
    recorded(verb, serve_.kernels);
    listen(verb, serve_.listen);

    verb =
        add("doctor", "Check the store, and whether this machine is fit for measuring",
            "ejk doctor --seconds 5", [this](Output& out) {
              return doctor_.selftest ? doctor_selftest(doctor_, out) : doctor_verb(doctor_, out);
            });
    directory(verb, doctor_.store);
    verb->add_option("--seconds", doctor_.seconds, "How long to measure the noise; 0: not at all")
        ->type_name("S")
        ->check(number_of(0, false, 600))
        ->capture_default_str();
    CLI::Option* const selftest =
        verb->add_flag("--selftest", doctor_.selftest,
                       "Check the results of the library's kernels on all OpenCL and CUDA devices");
    verb->add_option("--platform", doctor_.platform, "Only the devices of this platform")
        ->type_name("NAME")
        ->check(CLI::IsMember({"opencl", "cuda"}))
        ->needs(selftest);
    verb->add_option("--root", doctor_.root, "")->group("");  // a prepared tree, in tests
  }

  void kernels() {
    CLI::App* verb =
        add("tune", "Tune recorded calls, the calls of a lowered computation, or one call",
            "ejk tune --recorded --budget 600 --plugin libmy_kernels.so",
            [this](Output& out) { return tune_verb(tune_, out); });
    call(verb, tune_.op, tune_.args);
    call_device(verb, tune_.device);
    verb->add_flag("--recorded", tune_.all_recorded,
                   "Tune all recorded calls, those first that can save most time");
    verb->add_option("--lowered", tune_.lowered, "The labelled calls of this file or dump folder")
        ->type_name("FILE");
    verb->add_option("--prefix", tune_.prefixes, "A further prefix of labels; may be repeated")
        ->type_name("TEXT")
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
    verb->add_option("--op", tune_.ops, "With --recorded: only this op; may be repeated")
        ->type_name("OP")
        ->transform(op_name())
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
    store(verb, tune_.kernels.store);
    with_kernels(verb, tune_.kernels);
    verb->add_option("--budget", tune_.budget, "Seconds for all calls together; 0: any time")
        ->type_name("S")
        ->check(number_of(0, false))
        ->capture_default_str();
    verb->add_option("--budget-per-call", tune_.budget_per_call, "Seconds for one call, about")
        ->type_name("S")
        ->check(number_of(0, true))
        ->capture_default_str();
    verb->add_option(
            "--worker", tune_.worker,
            "The command of a worker process for kernels that this tool does not have, such as "
            "kernels in Python: 'python -m ejk worker --import MODULE'")
        ->type_name("COMMAND");
    verb->add_option("--deadline", tune_.deadline,
                     "End a worker that does not answer within this time after its budget")
        ->type_name("S")
        ->check(number_of(0, true))
        ->capture_default_str();
    verb->add_flag("--in-process", tune_.in_process,
                   "Tune in this process, for debuggers; a kernel that crashes ends it");
    verb->add_flag("--share", tune_.share,
                   "With --recorded: tune together with other processes that have the same store; "
                   "each takes calls that no other one has at the moment");
    verb->add_option("--shard", tune_.shard,
                     "With --recorded: only part I of N, from 0 to N-1, by the hash of each call's "
                     "name; with --share: begin there; default: as the job array says, or anywhere")
        ->type_name("I/N");
    verb->add_flag("--retune", tune_.retune, "Tune calls again that are already tuned");
    verb->add_flag("--dry-run", tune_.dry_run,
                   "With --recorded: show what would be tuned, in which order and why");

    CLI::Option* const serve =
        verb->add_flag("--serve", tune_.serve,
                       "Show the tuning in a browser, and its report afterwards, until Ctrl-C");
    listen(verb, tune_.listen)->needs(serve);

    CLI::App* fleet = app_.add_subcommand("fleet", "Tune with many processes");
    fleet->require_subcommand(1);
    verb = add(*fleet, "status",
               "Show how far the recorded calls of each device are tuned, and by whom",
               "ejk fleet status --store postgresql://db.example/tuned",
               [this](Output& out) { return fleet_status_verb(fleet_, out); });
    store(verb, fleet_.kernels.store);
    recorded(verb, fleet_.kernels);
    filter(verb, fleet_.filter);

    // Started by tune: what it says is for programs.
    app_.add_subcommand("worker",
                        "Tune what comes on standard input; docs/reference/worker.md says how")
        ->group("")
        ->callback([this] { verb_ = [](Output&) { return worker_verb(); }; });

    verb = add("bench", "Measure stored configs against the heuristics",
               "ejk bench softmax --arg f32[64,64] --arg 1 --arg f32[64,64]",
               [this](Output& out) { return bench_verb(bench_, out); });
    call(verb, bench_.op, bench_.args);
    call_device(verb, bench_.filter.device);
    verb->add_option("--key", bench_.filter.key, "Only recorded calls with this key")
        ->type_name("KEY");
    store(verb, bench_.kernels.store);
    with_kernels(verb, bench_.kernels);
    verb->add_option("--seconds", bench_.seconds, "Seconds for each call, about")
        ->type_name("S")
        ->check(number_of(0, true))
        ->capture_default_str();
  }

  void moving() {
    CLI::App* verb =
        add("export", "Write entries into one file", "ejk export tuned.jsonl --device this",
            [this](Output& out) { return export_verb(export_, out); });
    verb->add_option("file", export_.file, "The file; - is standard output")
        ->type_name("FILE")
        ->capture_default_str();
    store(verb, export_.store);
    filter(verb, export_.filter);
    verb->add_option("--key", export_.filter.key, "Only this key")->type_name("KEY");
    verb->add_flag("--without-candidates", export_.without_candidates,
                   "Leave out the measurements of the other candidates");

    verb = add("import",
               "Add entries from exports, stores or caches of ejkernel; measured entries stay",
               "ejk import tuned.jsonl --dry-run",
               [this](Output& out) { return import_verb(import_, out); });
    verb->add_option("files", import_.files,
                     "Exports, entries, stores, caches; - is standard input")
        ->type_name("FILE")
        ->required();
    directory(verb, import_.store);
    verb->add_option("--as-device", import_.as_device,
                     "File them under this device: a fingerprint, or \"this\"")
        ->type_name("DEVICE");
    verb->add_flag("--replace", import_.replace, "Replace existing entries, measured ones too");
    verb->add_flag("--with-heuristics", import_.with_heuristics,
                   "Also take configs that a cache marks as heuristics");
    verb->add_flag("--dry-run", import_.dry_run, "Change nothing, say what would happen");

    verb =
        add("merge", "Merge stores into one; its own measurements stay, else the better evidence",
            "ejk merge all_stores first_store second_store",
            [this](Output& out) { return merge_verb(merge_, out); });
    verb->add_option("into", merge_.into, "The store that gets them")->type_name("DIR")->required();
    verb->add_option("from", merge_.from, "Stores or exports")->type_name("FROM")->required();
    verb->add_flag("--dry-run", merge_.dry_run, "Change nothing, say what would happen");
  }

  void keeping() {
    CLI::App* verb = add("prune", "Remove entries that are not needed any more",
                         "ejk prune --older-than 90d --dry-run",
                         [this](Output& out) { return prune_verb(prune_, out); });
    directory(verb, prune_.store);
    filter(verb, prune_.filter);
    verb->add_option("--key", prune_.filter.key, "Only this key")->type_name("KEY");
    verb->add_option("--older-than", prune_.older_than,
                     "Only entries measured longer ago than this: 12h, 30d, 8w")
        ->type_name("AGE");
    verb->add_flag("--failed", prune_.failed, "Tunings in which every candidate was rejected");
    verb->add_flag("--other-devices", prune_.other_devices,
                   "Entries of devices that are not on this machine");
    verb->add_flag("--old-versions", prune_.old_versions,
                   "Entries of ops that have a newer version here");
    verb->add_flag("--damaged", prune_.damaged,
                   "Damaged files of entries and records, and files that were set aside");
    verb->add_flag("--all", prune_.all, "All entries, or all that --op, --device and --key select");
    verb->add_flag("--dry-run", prune_.dry_run, "Remove nothing, say what would go");

    CLI::App* snapshots = app_.add_subcommand(
        "snapshot", "Make, get and show snapshots: choices in one file that never changes");
    snapshots->require_subcommand(1);
    verb = add(*snapshots, "publish",
               "Make a snapshot of what a store answers here, and print its name",
               "ejk snapshot publish --device this",
               [this](Output& out) { return snapshot_publish_verb(snapshot_, out); });
    verb->add_option("file", snapshot_.file, "Write it there; default: into the store")
        ->type_name("FILE");
    store(verb, snapshot_.store);
    filter(verb, snapshot_.filter);
    verb = add(*snapshots, "fetch", "Get a snapshot by its name, and check it",
               "ejk snapshot fetch HASH choices.jsonl",
               [this](Output& out) { return snapshot_fetch_verb(snapshot_, out); });
    verb->add_option("name", snapshot_.name, "HASH, or PLACE#HASH: in that file or store")
        ->type_name("HASH")
        ->required();
    verb->add_option("file", snapshot_.file,
                     "Write it there, - is standard output; default: keep "
                     "it in the store of this machine")
        ->type_name("FILE");
    store(verb, snapshot_.store);
    verb = add(*snapshots, "show", "List the snapshots of a store, or the choices in one",
               "ejk snapshot show",
               [this](Output& out) { return snapshot_show_verb(snapshot_, out); });
    verb->add_option("name", snapshot_.name, "HASH, PLACE#HASH or a file; default: list all")
        ->type_name("HASH");
    store(verb, snapshot_.store);

    CLI::App* store_verbs = app_.add_subcommand(
        "store", "Work on a store: its format, or a database that serves as one");
    store_verbs->require_subcommand(1);
    const auto url = [this](CLI::App* of) {
      of->add_option("url", store_.url,
                     "postgresql://user@host/database; default: "
                     "EJKERNEL_PERSISTENT_CACHE_URL")
          ->type_name("URL");
    };
    verb = add(*store_verbs, "init", "Make a store in a database, and the roles that may use it",
               "ejk store init postgresql://admin@host/tunings",
               [this](Output& out) { return store_init_verb(store_, out); });
    url(verb);
    verb =
        add(*store_verbs, "check", "Check whether a database can be used as a store, and for what",
            "ejk store check postgresql://user@host/tunings",
            [this](Output& out) { return store_check_verb(store_, out); });
    url(verb);
    verb =
        add(*store_verbs, "upgrade", "Bring a store or a database to the present format",
            "ejk store upgrade", [this](Output& out) { return store_upgrade_verb(store_, out); });
    verb->add_option("store", store_.store,
                     "A directory or a URL; default: EJKERNEL_PERSISTENT_CACHE_DIR")
        ->type_name("STORE");
    verb =
        add(*store_verbs, "push", "Send a database the entries that it has not received yet",
            "ejk store push --all", [this](Output& out) { return store_push_verb(store_, out); });
    url(verb);
    directory(verb, store_.store);
    verb->add_flag("--all", store_.all,
                   "All entries and recorded calls of this machine, not only what is waiting");

    CLI::App* quarantine =
        app_.add_subcommand("quarantine", "List or clear configs that crashed repeatedly");
    quarantine->require_subcommand(1);
    verb = add(*quarantine, "ls", "List the configs in quarantine", "ejk quarantine ls",
               [this](Output& out) { return quarantine_ls_verb(quarantine_, out); });
    verb->add_option("op", quarantine_.op, "Only this op")->type_name("OP")->transform(op_name());
    directory(verb, quarantine_.store);
    verb =
        add(*quarantine, "clear", "Allow configs to be tried again", "ejk quarantine clear matmul",
            [this](Output& out) { return quarantine_clear_verb(quarantine_, out); });
    verb->add_option("op", quarantine_.op, "Only this op")->type_name("OP")->transform(op_name());
    verb->add_flag("--all", quarantine_.all, "All ops");
    directory(verb, quarantine_.store);
  }

  static int print(const std::string& text, Output& out) {
    if (out.json()) out.document(Value::object({{"text", text}}));
    else out.raw(text);
    return exit_ok;
  }

  void about_itself() {
    CLI::App* verb = add("completion", "Print a completion script",
                         "ejk completion bash > ~/.local/share/bash-completion/completions/ejk",
                         [this](Output& out) { return print(completion(help(), shell_), out); });
    verb->add_option("shell", shell_, "bash, zsh or fish")->type_name("SHELL")->required();
    add("manual", "Print the manual page, for man -l -", "ejk manual | man -l -",
        [this](Output& out) {
          return print(manual_page(help(), std::string(library_version())), out);
        });
  }

  static void collect(const CLI::App& app, const std::string& path, std::vector<VerbHelp>& out) {
    const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
    for (const CLI::App* verb : verbs) {
      if (verb->get_group().empty()) continue;
      const std::string name = path.empty() ? verb->get_name() : path + " " + verb->get_name();
      if (!verb->get_subcommands([](const CLI::App*) { return true; }).empty()) {
        collect(*verb, name, out);
        continue;
      }
      VerbHelp help{
          name, verb->get_description(), verb->get_footer().substr(example_title.size()), {}, {}};
      for (const CLI::Option* option : verb->get_options()) {
        if (option->get_group().empty()) continue;
        OptionHelp o{{},
                     option->get_items_expected_max() == 0 ? "" : option->get_type_name(),
                     option->get_description()};
        for (const std::string& n : option->get_lnames()) o.names.push_back("--" + n);
        for (const std::string& n : option->get_snames()) o.names.push_back("-" + n);
        (o.names.empty() ? help.arguments : help.options).push_back(std::move(o));
      }
      out.push_back(std::move(help));
    }
  }

  CLI::App app_;
  std::function<int(Output&)> verb_;
  bool json_ = false, wide_ = false;
  std::string shell_;
  DevicesOptions devices_;
  LsOptions ls_;
  ShowOptions show_;
  ExplainOptions explain_;
  LabelsOptions labels_;
  WhatIfOptions what_if_;
  TopOptions top_;
  ReportOptions report_;
  ServeOptions serve_;
  DoctorOptions doctor_;
  TuneOptions tune_;
  FleetOptions fleet_;
  BenchOptions bench_;
  ExportOptions export_;
  ImportOptions import_;
  MergeOptions merge_;
  PruneOptions prune_;
  SnapshotOptions snapshot_;
  StoreOptions store_;
  QuarantineOptions quarantine_;
};

// Said on stderr, and for programs as a document too.
int give_up(int code, const std::string& message, bool json) {
  say(message);
  Output out(json ? Output::Form::json : Output::Form::tables);
  out.document(Value::object({{"error", message}}));
  return out.finish(code);
}

// A store's file must not become standard output because that was closed.
void open_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) == -1)
      static_cast<void>(::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY));
}

int run(Line& line) {
  Output out(line.form());
  const bool json = out.json();
  try {
    return out.finish(line.verb()(out));
  } catch (const Failure& failure) {
    return give_up(failure.code, failure.what(), json);
  } catch (const std::bad_alloc&) {
    return give_up(exit_failed, "out of memory", json);
  } catch (...) {
    return give_up(exit_failed, base::what_was_thrown(), json);
  }
}

int main(int argc, char** argv) {
  open_standard_files();
  signal(SIGPIPE, SIG_IGN);  // a reader that goes away must not end a tuning
  Line line;
  CLI::App& app = line.app();
  const std::vector<std::string_view> words(argv + std::min(argc, 1), argv + argc);
  const bool json = std::ranges::count(words, "--json") > 0;  // also if the line cannot be read
  if (const std::string wrong = wrong_first_word(app, words); !wrong.empty())
    return give_up(exit_usage, wrong, json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    app.exit(asked, text, text);
    Output out(Output::Form::tables);
    out.raw(text.str());
    return out.finish(exit_ok);
  } catch (const CLI::Error& error) {
    return give_up(exit_usage, usage_error(app, error.what()), json);
  }
  if (!line.verb()) {
    return give_up(exit_usage, "ejk needs a verb\n" + app.help(), json);
  }
  return run(line);
}

}  // namespace
}  // namespace ejk::cli

int main(int argc, char** argv) {
  try {
    return ejk::cli::main(argc, argv);
  } catch (const std::exception& error) {
    ejk::cli::say(error.what());
    return ejk::cli::exit_failed;
  }
}
