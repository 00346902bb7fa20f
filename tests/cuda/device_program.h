// SPDX-License-Identifier: Apache-2.0
// Builds and launches sources on a backend as tests write it.
#pragma once

#include <string>
#include <vector>

#include "cuda/emulated_cuda.h"
#include "platform/backend.h"

namespace ejk::detail {

// Memory of a device with the values of a vector.
template <class T>
class Array {
 public:
  Array(Backend& backend, std::vector<T> values)
      : backend_(backend), size_(values.size()), memory_(backend.allocate(size_ * sizeof(T))) {
    backend.write(memory_, 0, values.data(), size_ * sizeof(T));
  }
  ~Array() { backend_.release(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  std::vector<T> values() const {
    std::vector<T> values(size_);
    backend_.read(values.data(), memory_, 0, size_ * sizeof(T));
    return values;
  }
  DeviceMemory memory() const { return memory_; }

 private:
  Backend& backend_;
  size_t size_;
  DeviceMemory memory_;
};

inline LaunchArgument argument(DeviceMemory memory) { return {.memory = memory}; }
template <class T>
LaunchArgument argument(const Array<T>& array) {
  return argument(array.memory());
}
template <class T>
requires std::is_arithmetic_v<T> LaunchArgument argument(const T& number) {
  return {.number = &number, .bytes = sizeof number};
}

// A source of tests/cuda/sources with `macros` before it: "#define GROUP 64\n".
inline std::string program_text(const Backend& backend, const std::string& file,
                                const std::string& macros = "") {
  return std::string(backend.dialect()) + macros + "#line 1 \"" + file + "\"\n" +
         text_of_source(file);
}

template <class... A>
void launch(Backend& backend, DeviceProgram& program, const char* kernel, const Grid& grid,
            const A&... arguments) {
  const auto made = program.kernel(kernel);
  const LaunchArgument list[] = {argument(arguments)...};
  backend.launch(*made, grid, list);
}

}  // namespace ejk::detail
