// SPDX-License-Identifier: Apache-2.0
#include "line.h"

#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace ejk::cli {
namespace {

CLI::Validator number_in(const Range& range) {
  const auto check = [=](const std::string& text) -> std::string {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool read = error == std::errc() && end == text.data() + text.size();
    if (read && std::isfinite(number) &&
        (range.without_from ? number > range.from : number >= range.from) &&
        (range.to == 0 || number <= range.to))
      return "";
    return "got " + text + "; expected a number " +
           (range.to != 0        ? fmt::format("from {:g} to {:g}", range.from, range.to)
            : range.without_from ? fmt::format("> {:g}", range.from)
                                 : fmt::format(">= {:g}", range.from));
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator op_name() {
  const auto strip = [](std::string& text) -> std::string {
    if (text.size() > 1 && text.ends_with(':')) text.pop_back();
    return "";
  };
  return CLI::Validator(strip, "", "");
}

}  // namespace

const OptionLine& OptionLine::required() const {
  option_->required();
  return *this;
}
const OptionLine& OptionLine::shows_default() const {
  option_->capture_default_str();
  return *this;
}
const OptionLine& OptionLine::needs(const OptionLine& other) const {
  option_->needs(other.option_);
  return *this;
}
const OptionLine& OptionLine::one_of(const std::vector<std::string>& words) const {
  option_->check(CLI::IsMember(words));
  return *this;
}
const OptionLine& OptionLine::names_op() const {
  option_->transform(op_name());
  return *this;
}
const OptionLine& OptionLine::hidden() const {
  option_->group("");
  return *this;
}

OptionLine VerbLine::flag(const char* name, bool& to, const char* about) const {
  return OptionLine(verb_.add_flag(name, to, about));
}
OptionLine VerbLine::value(const char* name, std::string& to, const char* shown,
                           const char* about) const {
  return OptionLine(verb_.add_option(name, to, about)->type_name(shown));
}
OptionLine VerbLine::number(const char* name, int& to, const char* shown, Range range,
                            const char* about) const {
  return OptionLine(verb_.add_option(name, to, about)->type_name(shown)->check(number_in(range)));
}
OptionLine VerbLine::number(const char* name, double& to, const char* shown, Range range,
                            const char* about) const {
  return OptionLine(verb_.add_option(name, to, about)->type_name(shown)->check(number_in(range)));
}
OptionLine VerbLine::values(const char* name, std::vector<std::string>& to, const char* shown,
                            const char* about) const {
  return OptionLine(verb_.add_option(name, to, about)->type_name(shown));
}
OptionLine VerbLine::repeated(const char* name, std::vector<std::string>& to, const char* shown,
                              const char* about) const {
  return OptionLine(verb_.add_option(name, to, about)
                        ->type_name(shown)
                        ->take_all()
                        ->expected(1)
                        ->allow_extra_args(false));
}

// ---- what several verbs take -------------------------------------------------------------------

void VerbLine::store(std::string& to) const {
  value("--store", to, "DIR",
        "The store: a directory, or postgresql://...; default: "
        "EJKERNEL_PERSISTENT_CACHE_DIR and its layers");
}
void VerbLine::directory(std::string& to) const {
  value("--store", to, "DIR", "The store, a directory; default: EJKERNEL_PERSISTENT_CACHE_DIR");
}
void VerbLine::filter(Filter& to) const {
  repeated("--op", to.ops, "OP", "Only this op: NAME or NAME@vVERSION; may be repeated").names_op();
  device(to.device);
}
void VerbLine::device(std::string& to) const {
  value("--device", to, "DEVICE",
        "Only this device: a name from `ejk devices` such as opencl:0, the beginning of "
        "a fingerprint, or \"this\" for all devices of this machine");
}
void VerbLine::key_of_entry(std::string& to) const {
  value("key", to, "KEY", "The first digits of a key, OP:KEY, OP: for all of an op, or a label")
      .required();
}
OptionLine VerbLine::listen(std::string& to) const {
  return value("--listen", to, "ADDRESS:PORT",
               "The address of the page; port 0 is any free one. An address that other "
               "machines reach asks for the token in the URL that is printed")
      .shows_default();
}
void VerbLine::recorded_by(std::vector<std::string>& ops, std::string& of_device) const {
  repeated("--op", ops, "OP", "Only this op; may be repeated").names_op();
  value("--device", of_device, "DEVICE",
        "Only calls recorded on this device: its fingerprint, or the beginning of it")
      .shows_default();
}
void VerbLine::recorded_in(KernelOptions& to) const {
  value("--recorded-in", to.recorded, "DIR",
        "Folder of recorded calls; default: \"recorded\" in the --store that is given, "
        "else EJKERNEL_OPS_RECORD_DIR, else \"recorded\" in the default store. A database "
        "has the calls that all machines sent");
}
void VerbLine::with_kernels(KernelOptions& to) const {
  recorded_in(to);
  repeated("--plugin", to.plugins, "LIB", "A shared library of kernels; may be repeated");
}
void VerbLine::call(std::string& op, std::vector<std::string>& args) const {
  value("op", op, "OP", "An op whose kernel is known here: NAME or NAME@vVERSION").names_op();
  repeated("--arg", args, "ARG",
           "The next argument; give one for each parameter of run. An array is "
           "f32[512,512], with bounds i32[64]:0..1023, in rising order "
           "i32[101]:0..800:rising. An optional argument is some(ARG) or null. Any other "
           "value is JSON");
}
void VerbLine::call_device(std::string& to) const {
  value("--device", to, "DEVICE",
        "The device of the arrays, by its name in `ejk devices` such as opencl:0; "
        "default: the CPU. With recorded calls: only those of this device; default: "
        "all devices of this machine");
}
void VerbLine::prefixes(std::vector<std::string>& to) const {
  repeated("--prefix", to, "TEXT", "A further prefix of labels; may be repeated");
}

// ---- verbs -------------------------------------------------------------------------------------

VerbLine Verbs::add(const VerbText& text, std::function<int(Output&)> run) {
  CLI::App* const verb = app_.add_subcommand(text.name, text.about);
  verb->add_flag("--json", asked_.json, "One JSON document instead of tables");
  verb->add_flag("--wide", asked_.wide, "Tables with one line for each row, however long");
  verb->footer(std::string(example_title) + text.example);
  verb->callback([&asked = asked_, run = std::move(run)] { asked.verb = run; });
  return VerbLine(*verb);
}

void Verbs::add_hidden(const char* name, const char* about, std::function<int(Output&)> run) {
  app_.add_subcommand(name, about)->group("")->callback([&asked = asked_, run = std::move(run)] {
    asked.verb = run;
  });
}

Verbs Verbs::group(const char* name, const char* about) {
  CLI::App* const verb = app_.add_subcommand(name, about);
  verb->require_subcommand(1);
  return Verbs(*verb, asked_);
}

}  // namespace ejk::cli
