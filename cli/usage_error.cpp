// SPDX-License-Identifier: Apache-2.0
#include "usage_error.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <CLI/CLI.hpp>

namespace ejk::cli {
namespace {

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

// "; did you mean WORD?" of the known word that is at most two letters from this one, else "".
std::string nearest_of(const std::vector<std::string>& known, const std::string& word) {
  std::string nearest;
  size_t least = 3;
  for (const std::string& each : known)
    if (const size_t apart = letters_apart(word, each); apart < least)
      least = apart, nearest = each;
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

std::vector<const CLI::App*> verbs_below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// CLI11 would only say that it did not expect the word. `words`: "ejk", or "ejk VERB" for its own.
std::string unknown_verb(const CLI::App& app, const std::string& words, const std::string& word) {
  std::vector<std::string> known;
  std::string list;
  for (const CLI::App* verb : verbs_below(app)) {
    known.push_back(verb->get_name());
    list += " " + verb->get_name();
  }
  return "there is no verb \"" + word + "\"" + nearest_of(known, word) + " (" +
         (words == "ejk" ? "ejk --help lists them)" : words + " has:" + list + ")");
}

// The same of an option; "" if there is none among the words that are left.
std::string unknown_option(const CLI::App& verb, const std::string& words) {
  for (const std::string& word : verb.remaining()) {
    if (!word.starts_with("-") || word == "-" || word == "--") continue;
    std::vector<std::string> known;
    for (const CLI::Option* option : verb.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    const std::string option = word.substr(0, word.find('='));
    return words + " has no option " + option + nearest_of(known, option);
  }
  return "";
}

// What is missing, as the help names it: CLI11 only says that "key is required".
std::string needs(const std::string& words, const CLI::App& verb, const std::string& message) {
  for (const CLI::Option* option : verb.get_options())
    if (message == option->get_name() + " is required")
      return words + " needs " + option->get_type_name() + ": " + option->get_description();
  return message;
}

// CLI11 would only say that it did not expect the option.
std::string option_before_verb(const std::vector<const CLI::App*>& verbs,
                               const std::vector<std::string_view>& words) {
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

}  // namespace

std::string wrong_first_word(const CLI::App& app, const std::vector<std::string_view>& words) {
  if (words.empty()) return "";
  const auto verbs = verbs_below(app);
  if (words[0].starts_with('-')) return option_before_verb(verbs, words);
  const auto is_named = [&](const CLI::App* verb) { return verb->get_name() == words[0]; };
  return std::ranges::any_of(verbs, is_named) ? ""
                                              : unknown_verb(app, "ejk", std::string(words[0]));
}

std::string usage_error(const CLI::App& app, std::string message) {
  std::string words = "ejk";
  const CLI::App* at = &app;
  for (; !at->get_subcommands().empty(); words += " " + at->get_name())
    at = at->get_subcommands().front();
  const std::vector<std::string> rest = at->remaining();
  const auto below = verbs_below(*at);
  if (at != &app && !below.empty() && !rest.empty() && !rest[0].starts_with('-'))
    return unknown_verb(*at, words, rest[0]);
  if (const std::string unknown = unknown_option(*at, words); !unknown.empty()) message = unknown;
  else if (at != &app && !below.empty()) {
    message = words + " needs a subcommand:";
    for (const CLI::App* verb : below) message += " " + verb->get_name();
  } else message = needs(words, *at, message);
  return message + " (" + words + " --help says more)";
}

}  // namespace ejk::cli
