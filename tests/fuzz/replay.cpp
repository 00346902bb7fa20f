// SPDX-License-Identifier: Apache-2.0
// A check of what is kept in the given folders: fuzzers find it, this test remembers it.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz.h"

int main(int count, char** folders) {
  int replayed = 0;
  for (int i = 1; i < count; ++i)
    for (const auto& item : std::filesystem::directory_iterator(folders[i])) {
      std::fprintf(stderr, "%s\n", item.path().c_str());
      std::ifstream file(item.path(), std::ios::binary);
      fuzz::check(std::string(std::istreambuf_iterator<char>(file), {}));
      ++replayed;
    }
  fuzz::demand(replayed > 0, "nothing is kept there");
}
