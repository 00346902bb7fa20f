// SPDX-License-Identifier: Apache-2.0
#include "manual.h"

#include <algorithm>
#include <map>
#include <set>

#include "output.h"

namespace ejk::cli {
namespace {

// A backslash and a leading dot or quote mean something to roff, and '-' becomes a hyphen.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else if ((c == '.' || c == '\'') && out.empty()) out += std::string("\\&") + c;
    else out += c;
  }
  return out;
}

std::string quoted(const std::string& text) {  // for sh, in single quotes
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string synopsis(const VerbHelp& verb) {
  std::string out = ".B ejk " + roff(verb.name) + "\n";
  if (!verb.options.empty()) out += "[options]\n";
  for (const OptionHelp& argument : verb.arguments) out += ".I " + roff(argument.value) + "\n";
  return out;
}

std::string first_word(const std::string& name) { return name.substr(0, name.find(' ')); }

std::vector<std::string> words_after(const std::vector<VerbHelp>& verbs, const std::string& first) {
  std::vector<std::string> out;
  for (const VerbHelp& verb : verbs)
    if (verb.name.starts_with(first + " ")) out.push_back(verb.name.substr(first.size() + 1));
  return out;
}

std::vector<std::string> first_words(const std::vector<VerbHelp>& verbs) {
  std::vector<std::string> out;
  for (const VerbHelp& verb : verbs)
    if (std::ranges::find(out, first_word(verb.name)) == out.end())
      out.push_back(first_word(verb.name));
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string options_after(const std::vector<VerbHelp>& verbs, const std::string& first) {
  std::vector<std::string> out = words_after(verbs, first);
  std::set<std::string> seen;
  for (const VerbHelp& verb : verbs)
    if (first_word(verb.name) == first)
      for (const OptionHelp& option : verb.options)
        for (const std::string& name : option.names)
          if (seen.insert(name).second) out.push_back(name);
  return joined(out);
}

// The words that bash offers for a value of this kind; "" where they cannot be known.
std::string bash_words(const std::string& kind) {
  if (kind == "DIR") return "$(compgen -d -- \"$word\")";
  if (kind == "FILE" || kind == "LIB" || kind == "FROM") return "$(compgen -f -- \"$word\")";
  if (kind == "OP") return "$(_ejk_column 1)";
  if (kind == "KEY") return "$(_ejk_column 2)";
  if (kind == "SHELL") return "bash\nzsh\nfish";
  if (kind == "DEVICE") return "this";
  return "";
}

std::string bash_completion(const std::vector<VerbHelp>& verbs) {
  std::map<std::string, std::set<std::string>> valued;  // options by the words behind them
  std::map<std::string, std::string> arguments;         // the same of verbs
  for (const VerbHelp& verb : verbs) {
    for (const OptionHelp& option : verb.options)
      if (!option.value.empty())
        valued[bash_words(option.value)].insert(option.names.begin(), option.names.end());
    for (const OptionHelp& argument : verb.arguments)
      if (arguments[first_word(verb.name)].empty())
        arguments[first_word(verb.name)] = bash_words(argument.value);
  }
  std::string out =
      "# bash completion of ejk; put it into /usr/share/bash-completion/completions/ejk\n"
      "_ejk_column() {  # of the entries in the default store\n"
      "  ejk ls --wide 2>/dev/null | awk -v n=\"$1\" '$1 ~ /@v/ { print $n }' | sort -u\n"
      "}\n"
      "_ejk() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} words= more= line\n"
      "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
      "    words='" +
      joined(first_words(verbs)) +
      " --help --version'\n"
      "  else\n"
      "    case ${COMP_WORDS[COMP_CWORD-1]} in\n";
  for (const auto& [words, names] : valued) {
    std::string pattern;
    for (const std::string& name : names) pattern += (pattern.empty() ? "" : "|") + name;
    out += "      " + pattern + ") more=\"" + words + "\" ;;\n";
  }
  out +=
      "      *)\n"
      "        case ${COMP_WORDS[1]} in\n";
  for (const std::string& first : first_words(verbs)) {
    out += "          " + first + ") words='" + options_after(verbs, first) + "'";
    if (const std::string& words = arguments[first]; !words.empty())
      out += "; [[ $word == -* ]] || more=\"" + words + "\"";
    out += " ;;\n";
  }
  out +=
      "        esac ;;\n"
      "    esac\n"
      "  fi\n"
      "  # compgen -W would run the $(commands) in names of files and ops.\n"
      "  COMPREPLY=()\n"
      "  while IFS= read -r line; do\n"
      "    [[ -n $line && $line == \"$word\"* ]] && COMPREPLY+=(\"$(printf %q \"$line\")\")\n"
      "  done <<<\"${words// /$'\\n'}\"$'\\n'\"$more\"\n"
      "}\n"
      "complete -o default -F _ejk ejk\n";
  return out;
}

std::string zsh_completion(const std::vector<VerbHelp>& verbs) {
  std::string out =
      "#compdef ejk\n"
      "if (( CURRENT == 2 )); then\n"
      "  compadd -- " +
      joined(first_words(verbs)) +
      " --help --version\n"
      "  return\n"
      "fi\n"
      "case $words[2] in\n";
  for (const std::string& first : first_words(verbs))
    out += "  " + first + ") compadd -- " + options_after(verbs, first) +
           (first == "completion" ? " bash zsh fish" : "") + " ;;\n";
  return out + "esac\n_files\n";
}

std::string fish_completion(const std::vector<VerbHelp>& verbs) {
  std::string out = "# fish completion of ejk\n";
  for (const VerbHelp& verb : verbs) {
    const std::string first = first_word(verb.name);
    const bool nested = first != verb.name;
    if (!nested)
      out += "complete -c ejk -n __fish_use_subcommand -a " + first + " -d " + quoted(verb.about) +
             "\n";
    else
      out += "complete -c ejk -n __fish_use_subcommand -a " + first +
             "\ncomplete -c ejk -n '__fish_seen_subcommand_from " + first + "' -a " +
             verb.name.substr(first.size() + 1) + " -d " + quoted(verb.about) + "\n";
    if (verb.name == "completion")
      out += "complete -c ejk -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n";
    for (const OptionHelp& option : verb.options) {
      out += "complete -c ejk -n '__fish_seen_subcommand_from " + first + "'";
      for (const std::string& name : option.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (!option.value.empty()) out += " -r";
      out += " -d " + quoted(option.about) + "\n";
    }
  }
  return out;
}

}  // namespace

std::string manual_page(const std::vector<VerbHelp>& verbs, const std::string& version) {
  std::string out =
      ".TH EJK 1 \"\" \"ejk " + roff(version) +
      "\" \"User Commands\"\n"
      ".SH NAME\n"
      "ejk \\- look at, tune, move and ship the choices that kernels run with\n"
      ".SH SYNOPSIS\n.B ejk\n.I verb\n[options] [arguments]\n"
      ".SH DESCRIPTION\n"
      "Programs that use the library ejk keep, in a store, which configuration each kernel runs "
      "with for each shape on each device, and the measurements behind it. This tool works with "
      "such stores and with recorded calls.\n"
      ".PP\nEvery verb takes\n.BR \\-\\-json :\none JSON document on standard output instead of "
      "tables; {\\(dqerror\\(dq: \\(dq...\\(dq} if the verb cannot do what was asked. Messages "
      "and "
      "progress go to standard error.\n"
      ".SH VERBS\n";
  for (const VerbHelp& verb : verbs) {
    out += ".SS \"ejk " + roff(verb.name) + "\"\n" + synopsis(verb) + ".PP\n" + roff(verb.about) +
           "\n";
    for (const OptionHelp& argument : verb.arguments)
      out += ".TP\n.I " + roff(argument.value) + "\n" + roff(argument.about) + "\n";
    for (const OptionHelp& option : verb.options) {
      std::string names;
      for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + name;
      out += ".TP\n.B " + roff(names + (option.value.empty() ? "" : " " + option.value)) + "\n" +
             roff(option.about) + "\n";
    }
    out += ".PP\nExample:\n.B " + roff(verb.example) + "\n";
  }
  out +=
      ".SH EXIT STATUS\n"
      ".TP\n.B 0\nDone.\n"
      ".TP\n.B 1\nSomething could not be read, written or done; a message says what.\n"
      ".TP\n.B 2\nThe command line is wrong.\n"
      ".TP\n.B 3\nThere is no such entry, record, label, file or store.\n"
      ".TP\n.B 4\nA check failed: doctor found something bad, what\\-if too little covered, or "
      "store "
      "check no store that can be used.\n"
      ".TP\n.B 130\nInterrupted (Ctrl\\-C); what was found until then is kept.\n"
      ".TP\n.B 141\nThe reader of the output has gone away.\n"
      ".SH ENVIRONMENT\n"
      ".TP\n.B EJKERNEL_PERSISTENT_CACHE_DIR\nThe store, unless \\-\\-store is given. Default: "
      "$XDG_CACHE_HOME/ejkernel, else ~/.cache/ejkernel.\n"
      ".TP\n.B EJKERNEL_PERSISTENT_CACHE_LAYERS\nMore directories, separated by colons, that are "
      "searched after it and never written to.\n"
      ".TP\n.B EJKERNEL_PERSISTENT_CACHE_URL\npostgresql://user@host/database: a store that many "
      "machines share, behind the directory.\n"
      ".TP\n.B EJKERNEL_PERSISTENT_CACHE_SNAPSHOT\nHASH or PLACE#HASH: verbs that ask what a call "
      "runs with answer from this snapshot alone.\n"
      ".TP\n.B EJKERNEL_PERSISTENT_CACHE_PIN, EJKERNEL_RUN\n1, and the name of a run: verbs that "
      "ask what a call runs with ask what its processes agreed on.\n"
      ".TP\n.B EJKERNEL_OPS_RECORD_DIR\nThe folder of recorded calls.\n"
      ".TP\n.B NO_COLOR\nIf set, nothing is printed bold or in colours.\n";
  return out;
}

std::string completion(const std::vector<VerbHelp>& verbs, const std::string& shell) {
  if (shell == "bash") return bash_completion(verbs);
  if (shell == "zsh") return zsh_completion(verbs);
  if (shell == "fish") return fish_completion(verbs);
  throw Failure(exit_usage, "completion: got \"" + shell + "\"; expected bash, zsh or fish");
}

}  // namespace ejk::cli
