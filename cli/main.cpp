// SPDX-License-Identifier: Apache-2.0
// The tool `ejk`: reads the command line and calls the verb. Only line.cpp and usage_error.cpp see
// CLI11 beside it.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
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

// The command line: fills options, remembers which verb is to run.
class Line {
 public:
  Line() : app_(about, "ejk") {
    app_.set_version_flag("--version", "ejk " + std::string(library_version()));
    app_.require_subcommand(0, 1);
    app_.formatter(std::make_shared<HelpText>());
    Verbs verbs(app_, asked_);
    for (const auto add : add_verbs) add(verbs);
    about_itself(verbs);
  }

  CLI::App& app() { return app_; }
  const std::function<int(Output&)>& verb() const { return asked_.verb; }
  Output::Form form() const {
    return asked_.json   ? Output::Form::json
           : asked_.wide ? Output::Form::wide_tables
                         : Output::Form::tables;
  }

  // Verbs without those that only group others.
  std::vector<VerbHelp> help() const {
    std::vector<VerbHelp> out;
    collect(app_, "", out);
    return out;
  }

 private:
  static int print(const std::string& text, Output& out) {
    if (out.json()) out.document(Value::object({{"text", text}}));
    else out.raw(text);
    return exit_ok;
  }

  void about_itself(Verbs& verbs) {
    verbs
        .add({"completion", "Print a completion script",
              "ejk completion bash > ~/.local/share/bash-completion/completions/ejk"},
             [this](Output& out) { return print(completion(help(), shell_), out); })
        .value("shell", shell_, "SHELL", "bash, zsh or fish")
        .required();
    verbs.add({"manual", "Print the manual page, for man -l -", "ejk manual | man -l -"},
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
  Asked asked_;
  std::string shell_;
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
