// SPDX-License-Identifier: Apache-2.0
// NVIDIA's compiler where there is one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// In the toolkit, or as Python's nvidia-cuda-nvrtc, which ./test installs.
inline std::optional<std::string> real_nvrtc() {
  namespace fs = std::filesystem;
  std::vector<fs::path> folders = {"/usr/local/cuda/lib64"};
  std::error_code none;
  for (const auto& python : fs::directory_iterator(EJK_TEST_VENV "/lib", none))
    folders.push_back(python.path() / "site-packages/nvidia/cu13/lib");
  for (const fs::path& folder : folders)
    if (fs::exists(folder / "libnvrtc.so.13")) return (folder / "libnvrtc.so.13").string();
  return std::nullopt;
}
