// SPDX-License-Identifier: Apache-2.0
// Kernels that run on devices with memory of their own, OpenCL and CUDA: sources, launches, queues.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <ejk/detail/export.h>
#include <ejk/detail/launch.h>
#include <ejk/device.h>
#include <ejk/device_view.h>
#include <ejk/error.h>

namespace EJK_EXPORT ejk {

// A device, its driver or its compiler failed.
class DeviceError : public Error {
 public:
  // What failed, so that a program can decide what to do next.
  enum class Kind : uint8_t {
    absent,          // no such platform or device here, or built without it
    build,           // the compiler refused the source; log() has all that it said
    invalid_launch,  // more items per group than the device has, arguments that do not fit
    out_of_memory,   // here and now
    lost,            // nothing can run on this device in this process any more
    other,           // anything else that the driver reported
  };
  DeviceError(Kind kind, const std::string& message, std::string log = {})
      : Error(ErrorKind::device, message), device_kind_(kind), log_(std::move(log)) {}
  // What failed; and the compiler's whole output, "" if it was not the compiler.
  Kind device_kind() const noexcept { return device_kind_; }
  const std::string& log() const noexcept { return log_; }

 private:
  Kind device_kind_;
  std::string log_;
};

// A program in OpenCL C; the library puts a header in front that makes it readable for CUDA too.
// A literal, or a file that the CMake function ejk_add_kernels has embedded: both live as long as
// the process, so that launches are told apart by addresses.
class Source {
 public:
  template <size_t N>
  consteval Source(const char (&text)[N]) : Source("", text) {}
  // `name` is for the compiler's messages. Of several texts the last is the source's own, those
  // before it are shared with others.
  template <size_t M, size_t... N>
  requires(sizeof...(N) >= 1 &&
           sizeof...(N) <= detail::max_texts) consteval Source(const char (&name)[M],
                                                               const char (&... texts)[N])
      : text_{detail::literal(name), {detail::literal(texts)...}, sizeof...(N)} {}

  // The texts that are compiled together.
  constexpr const detail::SourceText& text() const noexcept { return text_; }

 private:
  detail::SourceText text_;
};

// The name of a kernel in a source, a literal too.
class KernelName {
 public:
  template <size_t N>
  consteval KernelName(const char (&name)[N]) : text_(detail::literal(name)) {}
  constexpr std::string_view text() const noexcept { return text_; }  // the name as in the source

 private:
  std::string_view text_;
};

// How many there are in each dimension. An array would leave zeros where nothing is given.
struct Extent {
  int64_t x = 1, y = 1, z = 1;  // 1 where you give nothing; 0 groups: nothing runs
};

// How a launch is spread: groups, and items (CUDA: threads) in each of them.
struct Grid {
  Extent groups = {}, items = {};  // groups of the launch, and items in each group
};

// How many groups of b are needed for a items. a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Begins to run a kernel of `source` on the device of its views, after what this thread has begun
// there before, and does not wait. The fields of `config` are macros in the source: upper case,
// bools and enums as numbers, "tile.bm" as TILE_BM. Views and numbers become the kernel's
// parameters in this order; a number must have the size of its parameter. A grid without groups
// does nothing. The program is built at the first launch with this config, or read from disk.
//
// Throws DeviceError, and Error(invalid_argument) if the views are of several devices.
template <class C, class... A>
void launch(const Source& source, KernelName kernel, const C& config, const Grid& grid,
            const A&... arguments) {
  constexpr bool has_view = (detail::DeviceViewLike<A> || ...);
  static_assert(has_view, "ejk: a launch needs a device view among its arguments");
  if constexpr (detail::check_macro_config<C>() && has_view) {
    auto key = detail::launch_key(source.text(), kernel.text(), config);
    const std::array list{detail::launch_argument(arguments)...};
    detail::launch({source.text(), kernel.text(), &config, detail::macros_of<C>}, key, grid, list);
  }
}

// What this thread has begun on a device.
class Queue {
 public:
  // Throws Error(invalid_argument) for the CPU, which has none.
  explicit Queue(const Device& device);
  // Until all of it is done.
  void wait() const;
  // For calls of other libraries: a cl_command_queue or a CUstream of this thread. Throws
  // Error(invalid_argument) if the device is of another platform.
  void* cl() const;
  void* cuda() const;

 private:
  const Device* device_;
};

}  // namespace ejk
