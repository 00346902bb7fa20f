// SPDX-License-Identifier: Apache-2.0
// The tool `ejk`: reads the command line and calls the verb. The only file that sees CLI11.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <functional>
#include <new>
#include <numeric>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <ejk/device.h>

#include "manual.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

constexpr const char* about =
    "Look at, tune, move and ship the choices that kernels run with.\n"
    "ejk VERB --help says more about a verb; man ejk has it all.";

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
            : above   ? fmt::format("above {:g}", least)
                      : fmt::format("of at least {:g}", least));
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

// The command line: fills options, remembers which verb is to run.
class Line {
 public:
  Line() : app_(about, "ejk") {
    app_.set_version_flag("--version", "ejk " + std::string(library_version()));
    app_.require_subcommand(0, 1);
    looking();
    kernels();
    moving();
    keeping();
    about_itself();
  }

  CLI::App& app() { return app_; }
  const std::function<int(Output&)>& verb() const { return verb_; }
  bool json() const { return json_; }

  // Verbs without those that only group others.
  std::vector<VerbHelp> help() const {
    std::vector<VerbHelp> out;
    collect(app_, "", out);
    return out;
  }

 private:
  using Run = std::function<int(Output&)>;

  CLI::App* add(CLI::App& parent, const std::string& name, const std::string& text, Run run) {
    CLI::App* verb = parent.add_subcommand(name, text);
    verb->add_flag("--json", json_, "One JSON document instead of tables");
    verb->callback([this, run = std::move(run)] { verb_ = run; });
    return verb;
  }
  CLI::App* add(const std::string& name, const std::string& text, Run run) {
    return add(app_, name, text, std::move(run));
  }

  static void store(CLI::App* verb, std::string& to) {
    verb->add_option("--store", to,
                     "The store, of verbs that look or tune also postgresql://...; default: "
                     "EJKERNEL_PERSISTENT_CACHE_DIR and its layers")
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
    verb->add_option("--device", to,
                     "Only this device: its fingerprint, how that begins, a name of `ejk devices` "
                     "as opencl:0, or \"this\": any that is here")
        ->type_name("DEVICE");
  }
  static void recorded(CLI::App* verb, KernelOptions& to) {
    verb->add_option(
            "--recorded-in", to.recorded,
            "Folder of recorded calls; default: \"recorded\" in the --store that is given, "
            "else EJKERNEL_OPS_RECORD_DIR, else \"recorded\" in the default store")
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
                     "Its next argument, one for each of run's parameters: an array as "
                     "f32[512,512], between bounds i32[64]:0..1023, in order from one to the "
                     "other i32[101]:0..800:rising; some(ARG) or null; any other value as JSON")
        ->type_name("ARG")
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
  }
  static void call_device(CLI::App* verb, std::string& to) {
    verb->add_option("--device", to,
                     "Where its arrays live, by a name of `ejk devices`: opencl:0; default: the "
                     "CPU. Of recorded calls: only those of that device; default: of any here")
        ->type_name("DEVICE");
  }

  void looking() {
    add("devices", "The devices of this machine and the names their entries are kept under",
        [this](Output& out) { return devices_verb(devices_, out); });

    CLI::App* verb =
        add("ls", "List the entries of a store", [this](Output& out) { return ls_verb(ls_, out); });
    verb->add_option("ops", ls_.filter.ops, "Only these ops: NAME or NAME@vVERSION")
        ->type_name("OP")
        ->transform(op_name());
    store(verb, ls_.store);
    device(verb, ls_.filter.device);
    verb->add_flag("--all", ls_.all, "Also entries that a layer in front hides");

    verb = add("show", "Show an entry: config, evidence, every candidate",
               [this](Output& out) { return show_verb(show_, out); });
    verb->add_option("key", show_.filter.key, "How the key begins, OP:KEY, OP: for all, or a label")
        ->type_name("KEY")
        ->required();
    store(verb, show_.store);
    filter(verb, show_.filter);
    verb->add_option("--candidates", show_.candidates, "Show at most so many candidates; 0: all")
        ->type_name("N")
        ->check(number_of(0, false))
        ->capture_default_str();

    verb = add("explain", "Say what a call of this key would run with here, tier by tier, and why",
               [this](Output& out) { return explain_verb(explain_, out); });
    verb->add_option("key", explain_.filter.key,
                     "How the key begins, OP:KEY, OP: for all, or a label")
        ->type_name("KEY")
        ->required();
    store(verb, explain_.kernels.store);
    filter(verb, explain_.filter);
    with_kernels(verb, explain_.kernels);

    verb = add("labels", "List the labelled calls in lowered computations",
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

    verb = add("what-if", "What recorded calls would get from a store: coverage, expected regret",
               [this](Output& out) { return what_if_verb(what_if_, out); });
    store(verb, what_if_.kernels.store);
    with_kernels(verb, what_if_.kernels);
    verb->add_option("--op", what_if_.ops, "Only this op; may be repeated")
        ->type_name("OP")
        ->transform(op_name())
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
    verb->add_option("--device", what_if_.device,
                     "Calls recorded on this device: its fingerprint, or how that begins")
        ->type_name("DEVICE")
        ->capture_default_str();
    verb->add_option("--min-coverage", what_if_.least_coverage,
                     "Exit with 4 if less of the recorded time is covered, in percent")
        ->type_name("PERCENT")
        ->check(number_of(0, false, 100));

    verb = add("report", "Write a report of a store as one HTML file",
               [this](Output& out) { return report_verb(report_, out); });
    verb->add_option("file", report_.file, "The HTML file")
        ->type_name("FILE")
        ->capture_default_str();
    store(verb, report_.kernels.store);
    filter(verb, report_.filter);
    recorded(verb, report_.kernels);

    verb =
        add("doctor", "What is wrong with this machine for measuring, and with the store",
            [this](Output& out) {
              return doctor_.selftest ? doctor_selftest(doctor_, out) : doctor_verb(doctor_, out);
            });
    store(verb, doctor_.store);
    verb->add_option("--seconds", doctor_.seconds, "How long to measure the noise; 0: not at all")
        ->type_name("S")
        ->check(number_of(0, false, 600))
        ->capture_default_str();
    CLI::Option* const selftest = verb->add_flag(
        "--selftest", doctor_.selftest,
        "Run the library's kernels for OpenCL and CUDA on all devices, against their references");
    verb->add_option("--platform", doctor_.platform, "Only on its devices")
        ->type_name("NAME")
        ->check(CLI::IsMember({"opencl", "cuda"}))
        ->needs(selftest);
    verb->add_option("--root", doctor_.root, "")->group("");  // a prepared tree, in tests
  }

  void kernels() {
    CLI::App* verb =
        add("tune", "Tune recorded calls, the calls of a lowered computation, or one call",
            [this](Output& out) { return tune_verb(tune_, out); });
    call(verb, tune_.op, tune_.args);
    call_device(verb, tune_.device);
    verb->add_flag("--recorded", tune_.all_recorded,
                   "All recorded calls, those first where most time can be saved");
    verb->add_option("--lowered", tune_.lowered, "The labelled calls of this file or dump folder")
        ->type_name("FILE");
    verb->add_option("--prefix", tune_.prefixes, "A further prefix of labels; may be repeated")
        ->type_name("TEXT")
        ->take_all()
        ->expected(1)
        ->allow_extra_args(false);
    verb->add_option("--op", tune_.ops, "Of recorded calls only those of this op; may be repeated")
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
    verb->add_option("--worker", tune_.worker,
                     "Command of a worker process for kernels that are not known here, such as "
                     "those of Python: 'python -m ejk worker --import MODULE'")
        ->type_name("COMMAND");
    verb->add_option("--deadline", tune_.deadline,
                     "A worker that has not answered so many seconds after its budget is ended")
        ->type_name("S")
        ->check(number_of(0, true))
        ->capture_default_str();
    verb->add_flag("--in-process", tune_.in_process,
                   "Tune in this process, for debuggers: a kernel that crashes ends it");
    verb->add_flag("--retune", tune_.retune, "Also calls that are tuned");
    verb->add_flag("--dry-run", tune_.dry_run,
                   "Of --recorded: say what would be tuned, in which order, and why");

    // Started by tune: what it says is for programs.
    app_.add_subcommand("worker", "Tune what comes on standard input; docs/worker.md says how")
        ->group("")
        ->callback([this] { verb_ = [](Output&) { return worker_verb(); }; });

    verb = add("bench", "Measure stored configs against the heuristics, now",
               [this](Output& out) { return bench_verb(bench_, out); });
    call(verb, bench_.op, bench_.args);
    call_device(verb, bench_.filter.device);
    verb->add_option("--key", bench_.filter.key, "Of recorded calls only this key")
        ->type_name("KEY");
    store(verb, bench_.kernels.store);
    with_kernels(verb, bench_.kernels);
    verb->add_option("--seconds", bench_.seconds, "For each call, about")
        ->type_name("S")
        ->check(number_of(0, true))
        ->capture_default_str();
  }

  void moving() {
    CLI::App* verb = add("export", "Write entries into one file",
                         [this](Output& out) { return export_verb(export_, out); });
    verb->add_option("file", export_.file, "The file; - is standard output")
        ->type_name("FILE")
        ->capture_default_str();
    store(verb, export_.store);
    filter(verb, export_.filter);
    verb->add_option("--key", export_.filter.key, "Only this key")->type_name("KEY");
    verb->add_flag("--without-candidates", export_.without_candidates,
                   "Leave out the measurements of what did not win");

    verb = add("import",
               "Take entries from exports, stores or caches of ejkernel; what was measured stays",
               [this](Output& out) { return import_verb(import_, out); });
    verb->add_option("files", import_.files,
                     "Exports, entries, stores, caches; - is standard input")
        ->type_name("FILE")
        ->required();
    store(verb, import_.store);
    verb->add_option("--as-device", import_.as_device,
                     "File them under this device: a fingerprint, or \"this\"")
        ->type_name("DEVICE");
    verb->add_flag("--replace", import_.replace, "Whatever is there, also what was measured");
    verb->add_flag("--with-heuristics", import_.with_heuristics,
                   "Also what a cache says was not measured");
    verb->add_flag("--dry-run", import_.dry_run, "Change nothing, say what would happen");

    verb = add("merge", "Merge stores into one; what it measured stays, else better evidence",
               [this](Output& out) { return merge_verb(merge_, out); });
    verb->add_option("into", merge_.into, "The store that gets them")->type_name("DIR")->required();
    verb->add_option("from", merge_.from, "Stores or exports")->type_name("FROM")->required();
    verb->add_flag("--dry-run", merge_.dry_run, "Change nothing, say what would happen");
  }

  void keeping() {
    CLI::App* verb = add("prune", "Remove entries that are of no more use",
                         [this](Output& out) { return prune_verb(prune_, out); });
    store(verb, prune_.store);
    filter(verb, prune_.filter);
    verb->add_option("--key", prune_.filter.key, "Only this key")->type_name("KEY");
    verb->add_option("--older-than", prune_.older_than, "Measured longer ago: 12h, 30d, 8w")
        ->type_name("AGE");
    verb->add_flag("--failed", prune_.failed, "Tunings in which every candidate was rejected");
    verb->add_flag("--other-devices", prune_.other_devices, "Of other devices than this one");
    verb->add_flag("--old-versions", prune_.old_versions, "Of ops that have a newer version here");
    verb->add_flag("--damaged", prune_.damaged,
                   "Damaged files, of entries and records, and those that were set aside");
    verb->add_flag("--all", prune_.all, "All entries (with --op, --device or --key: those)");
    verb->add_flag("--dry-run", prune_.dry_run, "Remove nothing, say what would go");

    CLI::App* store_verbs =
        app_.add_subcommand("store", "The store itself: its format, a database that is one");
    store_verbs->require_subcommand(1);
    const auto url = [this](CLI::App* of) {
      of->add_option("url", store_.url,
                     "postgresql://user@host/database; default: "
                     "EJKERNEL_PERSISTENT_CACHE_URL")
          ->type_name("URL");
    };
    verb = add(*store_verbs, "init", "Make a store in a database, and the roles that may use it",
               [this](Output& out) { return store_init_verb(store_, out); });
    url(verb);
    verb = add(*store_verbs, "check", "Say whether a database can be used as a store, and what for",
               [this](Output& out) { return store_check_verb(store_, out); });
    url(verb);
    verb = add(*store_verbs, "upgrade",
               "Bring entries of an older format, or a database, to the present one",
               [this](Output& out) { return store_upgrade_verb(store_, out); });
    verb->add_option("store", store_.store,
                     "A directory or a URL; default: EJKERNEL_PERSISTENT_CACHE_DIR")
        ->type_name("STORE");
    verb = add(*store_verbs, "push", "Send a database what it did not get while it was away",
               [this](Output& out) { return store_push_verb(store_, out); });
    url(verb);
    store(verb, store_.store);
    verb->add_flag("--all", store_.all, "All entries of the local store, not only what is waiting");

    CLI::App* quarantine = app_.add_subcommand("quarantine", "Configs that crashed reproducibly");
    quarantine->require_subcommand(1);
    verb = add(*quarantine, "ls", "List them",
               [this](Output& out) { return quarantine_ls_verb(quarantine_, out); });
    verb->add_option("op", quarantine_.op, "Only this op")->type_name("OP")->transform(op_name());
    store(verb, quarantine_.store);
    verb = add(*quarantine, "clear", "Let them be tried again",
               [this](Output& out) { return quarantine_clear_verb(quarantine_, out); });
    verb->add_option("op", quarantine_.op, "Of this op")->type_name("OP")->transform(op_name());
    verb->add_flag("--all", quarantine_.all, "Of all ops");
    store(verb, quarantine_.store);
  }

  static int print(const std::string& text, Output& out) {
    if (out.json()) out.document(Value::object({{"text", text}}));
    else out.raw(text);
    return exit_ok;
  }

  void about_itself() {
    CLI::App* verb = add("completion", "Print a completion script",
                         [this](Output& out) { return print(completion(help(), shell_), out); });
    verb->add_option("shell", shell_, "bash, zsh or fish")->type_name("SHELL")->required();
    add("manual", "Print the manual page, for man -l -", [this](Output& out) {
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
      VerbHelp help{name, verb->get_description(), {}, {}};
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
  bool json_ = false;
  std::string shell_;
  DevicesOptions devices_;
  LsOptions ls_;
  ShowOptions show_;
  ExplainOptions explain_;
  LabelsOptions labels_;
  WhatIfOptions what_if_;
  ReportOptions report_;
  DoctorOptions doctor_;
  TuneOptions tune_;
  BenchOptions bench_;
  ExportOptions export_;
  ImportOptions import_;
  MergeOptions merge_;
  PruneOptions prune_;
  StoreOptions store_;
  QuarantineOptions quarantine_;
};

size_t letters_apart(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Said on stderr, and for programs as a document too.
int give_up(int code, const std::string& message, bool json) {
  say(message);
  Output out(json);
  out.document(Value::object({{"error", message}}));
  return out.finish(code);
}

// A first word that is no verb: CLI11 would only say that it did not expect it.
std::string unknown_verb(CLI::App& app, const std::string& word) {
  std::string nearest;
  size_t least = 3;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    if (const size_t apart = letters_apart(word, verb->get_name()); apart < least)
      least = apart, nearest = verb->get_name();
  return "there is no verb \"" + word + "\"" +
         (nearest.empty() ? "" : "; did you mean " + nearest + "?") + " (ejk --help lists them)";
}

// What is missing, as the help names it: CLI11 only says that "key is required".
std::string needs(const std::string& words, const CLI::App& verb, const std::string& message) {
  for (const CLI::Option* option : verb.get_options())
    if (message == option->get_name() + " is required")
      return words + " needs " + option->get_type_name() + ": " + option->get_description();
  return message;
}

std::string usage_error(const CLI::App& app, std::string message) {
  std::string words = "ejk";
  const CLI::App* at = &app;
  for (; !at->get_subcommands().empty(); words += " " + at->get_name())
    at = at->get_subcommands().front();
  message = needs(words, *at, message);
  const auto below = at->get_subcommands([](const CLI::App*) { return true; });
  if (at != &app && !below.empty()) {
    message = words + " needs a subcommand:";
    for (const CLI::App* verb : below) message += " " + verb->get_name();
  }
  return message + " (" + words + " --help says more)";
}

// CLI11 would only say that it did not expect the option.
std::string option_before_verb(const std::vector<CLI::App*>& verbs, int argc, char** argv) {
  const std::vector<std::string_view> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty() || !words[0].starts_with('-')) return "";
  for (const char* own : {"-h", "--help", "--version"})
    if (words[0] == own) return "";
  const auto is_verb = [&](std::string_view word) {
    return std::ranges::any_of(verbs, [&](const CLI::App* v) { return v->get_name() == word; });
  };
  const auto verb = std::ranges::find_if(words, is_verb);
  std::string line = "options follow the verb: ejk ";
  line += verb == words.end() ? "VERB" : *verb;
  for (auto word = words.begin(); word != verb; ++word) line.append(" ").append(*word);
  return line;
}

// A store's file must not become standard output because that was closed.
void open_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) == -1)
      static_cast<void>(::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY));
}

int run(Line& line) {
  Output out(line.json());
  try {
    return out.finish(line.verb()(out));
  } catch (const Failure& failure) {
    return give_up(failure.code, failure.what(), line.json());
  } catch (const std::bad_alloc&) {
    return give_up(exit_failed, "out of memory", line.json());
  } catch (const std::exception& error) {
    return give_up(exit_failed, error.what(), line.json());
  }
}

int main(int argc, char** argv) {
  open_standard_files();
  signal(SIGPIPE, SIG_IGN);  // a reader that goes away must not end a tuning
  Line line;
  CLI::App& app = line.app();
  // Also of a line that cannot be read to its end.
  const bool json = std::any_of(argv + std::min(argc, 1), argv + argc, [](const char* word) {
    return std::string_view(word) == "--json";
  });
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  const auto is_named = [&](const CLI::App* verb) { return verb->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && std::ranges::none_of(verbs, is_named))
    return give_up(exit_usage, unknown_verb(app, argv[1]), json);
  if (const std::string misplaced = option_before_verb(verbs, argc, argv); !misplaced.empty())
    return give_up(exit_usage, misplaced, json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    app.exit(asked, text, text);
    Output out(false);
    out.raw(text.str());
    return out.finish(exit_ok);
  } catch (const CLI::Error& error) {
    return give_up(exit_usage, usage_error(app, error.what()), json);
  }
  if (!line.verb()) {
    return give_up(exit_usage, "a verb is needed\n" + app.help(), json);
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
