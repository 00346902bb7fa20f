// SPDX-License-Identifier: Apache-2.0
// The command line as data, and what is made from it: the manual page and shell completions.
#pragma once

#include <string>
#include <vector>

namespace ejk::cli {

struct OptionHelp {
  std::vector<std::string> names;  // "--store", "-o"; empty for an argument
  std::string value;               // "DIR"; empty for a flag
  std::string about;
};
struct VerbHelp {
  std::string name;  // "quarantine clear"
  std::string about;
  std::string example;  // a command line
  std::vector<OptionHelp> arguments, options;
};

// Roff, for man(1).
std::string manual_page(const std::vector<VerbHelp>& verbs, const std::string& version);
// A script for bash, zsh or fish. Throws Failure(usage) for another shell.
std::string completion(const std::vector<VerbHelp>& verbs, const std::string& shell);

}  // namespace ejk::cli
