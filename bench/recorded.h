// SPDX-License-Identifier: Apache-2.0
// Recorded data that benchmarks read: folders of NAME.json.gz files.
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

// Sorted by name; none if there is no such folder.
inline std::vector<std::filesystem::path> recorded_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().string().ends_with(".json.gz")) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Reads through gzip, which every Debian has: a benchmark is no reason to link a library.
inline std::string unzipped(const std::filesystem::path& path) {
  if (path.string().find('\'') != std::string::npos)
    throw std::runtime_error("a quote in " + path.string());
  const std::string command = "gzip -dc -- '" + path.string() + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (!pipe) throw std::runtime_error("cannot run gzip");
  std::string text, buffer(1 << 16, '\0');
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe.get()))
    text.append(buffer, 0, n);
  if (text.empty()) throw std::runtime_error("cannot read " + path.string());
  return text;
}

}  // namespace bench
