// SPDX-License-Identifier: Apache-2.0
// What a verb takes on the command line. Each verb says it beside its code; CLI11 is behind this.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "output.h"
#include "stores.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ejk::cli {

// The numbers that an option takes.
struct Range {
  double from;
  bool without_from = false;
  double to = 0;  // 0: no end
};
constexpr Range at_least(double from) { return {from}; }
constexpr Range above(double from) { return {from, true}; }
constexpr Range from_to(double from, double to) { return {from, false, to}; }

// An option or argument that was just named.
class OptionLine {
 public:
  explicit OptionLine(CLI::Option* option) : option_(option) {}
  const OptionLine& required() const;
  const OptionLine& shows_default() const;
  const OptionLine& needs(const OptionLine& other) const;
  const OptionLine& one_of(const std::vector<std::string>& words) const;
  const OptionLine& names_op() const;  // as where a key is asked for: NAME: is NAME
  const OptionLine& hidden() const;

 private:
  CLI::Option* option_;
};

// The line of one verb. Names with "--" are options, others arguments; `shown` stands for the value
// in the help. What is filled must live until the verb has run.
class VerbLine {
 public:
  explicit VerbLine(CLI::App& verb) : verb_(verb) {}

  OptionLine flag(const char* name, bool& to, const char* about) const;
  OptionLine value(const char* name, std::string& to, const char* shown, const char* about) const;
  OptionLine number(const char* name, int& to, const char* shown, Range range,
                    const char* about) const;
  OptionLine number(const char* name, double& to, const char* shown, Range range,
                    const char* about) const;
  // One value or more.
  OptionLine values(const char* name, std::vector<std::string>& to, const char* shown,
                    const char* about) const;
  // One value each time.
  OptionLine repeated(const char* name, std::vector<std::string>& to, const char* shown,
                      const char* about) const;

  // ---- what several verbs take
  void store(std::string& to) const;
  void directory(std::string& to) const;
  void filter(Filter& to) const;
  void device(std::string& to) const;
  void key_of_entry(std::string& to) const;
  OptionLine listen(std::string& to) const;
  void recorded_by(std::vector<std::string>& ops, std::string& of_device) const;
  void recorded_in(KernelOptions& to) const;
  void with_kernels(KernelOptions& to) const;
  void call(std::string& op, std::vector<std::string>& args) const;
  void call_device(std::string& to) const;
  void prefixes(std::vector<std::string>& to) const;

 private:
  CLI::App& verb_;
};

// What the line asked for.
struct Asked {
  std::function<int(Output&)> verb;
  bool json = false, wide = false;
};

struct VerbText {
  const char *name, *about;
  const char* example;  // a line that begins with the tool
};
inline constexpr std::string_view example_title = "Example:\n  ";

// The tool, or a verb that only groups others.
class Verbs {
 public:
  Verbs(CLI::App& app, Asked& asked) : app_(app), asked_(asked) {}

  // `declare` names the options, with which the verb runs.
  template <class Options>
  void add(const VerbText& text, int (*run)(const Options&, Output&),
           void (*declare)(const VerbLine&, Options&)) {
    const auto options = std::make_shared<Options>();
    declare(add(text, [options, run](Output& out) { return run(*options, out); }), *options);
  }
  VerbLine add(const VerbText& text, std::function<int(Output&)> run);
  // Not in the help, and without options.
  void add_hidden(const char* name, const char* about, std::function<int(Output&)> run);
  Verbs group(const char* name, const char* about);

 private:
  CLI::App& app_;
  Asked& asked_;
};

}  // namespace ejk::cli
