// SPDX-License-Identifier: Apache-2.0
// Files that people name on the command line.
#pragma once

#include <string>
#include <string_view>

namespace ejk::cli {

// The whole content; "-" is stdin. Throws Failure that says why not.
std::string read_whole(const std::string& path);

// The file as a whole or, if that fails, as it was. Throws Failure.
void write_whole(const std::string& path, std::string_view text);

}  // namespace ejk::cli
