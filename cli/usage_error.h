// SPDX-License-Identifier: Apache-2.0
// What is wrong with a command line, said more helpfully than CLI11 does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace ejk::cli {

// Of the words behind "ejk": the first one is not a verb, or options come before it. "": neither.
std::string wrong_first_word(const CLI::App& app, const std::vector<std::string_view>& words);

// Of a line that CLI11 refused, and what it said.
std::string usage_error(const CLI::App& app, std::string message);

}  // namespace ejk::cli
