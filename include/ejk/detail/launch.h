// SPDX-License-Identifier: Apache-2.0
// A launch without its types: what it runs, with what, and the words that tell it from others.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <ejk/detail/config_macros.h>
#include <ejk/detail/export.h>
#include <ejk/device.h>

namespace EJK_EXPORT ejk {
struct Grid;
struct Half;
struct BFloat16;
}  // namespace ejk

namespace EJK_EXPORT ejk {
namespace detail {

// Memory of a device: a cl_mem or a CUdeviceptr. Never to be dereferenced on the host.
using DeviceMemory = void*;

// One argument of a launch: memory of a device from a byte on, or a number.
struct LaunchArgument {
  const Device* device = nullptr;  // null: a number
  DeviceMemory memory = nullptr;
  size_t offset = 0;             // bytes into `memory`
  const void* number = nullptr;  // copied by the launch
  size_t bytes = 0;              // of the number
};

// What ejk::DeviceView offers.
template <class T>
concept DeviceViewLike = requires(const T& view) {
  { view.device } -> std::convertible_to<const Device*>;
  { view.memory } -> std::convertible_to<DeviceMemory>;
  { view.offset } -> std::convertible_to<size_t>;
};

// What a parameter of a device kernel can be besides memory. OpenCL has no parameters of type bool.
template <class T>
concept DeviceNumber =
    (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, float> ||
    std::same_as<T, double> || std::same_as<T, Half> || std::same_as<T, BFloat16>;

template <class T>
LaunchArgument launch_argument(const T& value) {
  static_assert(DeviceViewLike<T> || DeviceNumber<T>,
                "ejk: arguments of a launch are device views and numbers (no bools)");
  if constexpr (DeviceViewLike<T>) return {value.device, value.memory, value.offset};
  else return {.number = &value, .bytes = sizeof value};
}

// Reads the end, so that only a constant can be given.
template <size_t N>
consteval std::string_view literal(const char (&text)[N]) {
  if (text[N - 1] != '\0') throw "ejk: the text of a source ends with a zero";
  return {text, N - 1};
}

inline constexpr size_t max_texts = 4;

struct SourceText {
  std::string_view name;
  std::array<std::string_view, max_texts> texts;
  size_t count;
};

// An address per type of config: equal numbers of another type are other macros.
template <class C>
inline constexpr char config_type = 0;

inline constexpr size_t launch_words = 3 + max_texts;  // before those of the config

template <class C>
using LaunchKey = std::array<uint64_t, launch_words + word_count<C>()>;

inline uint64_t address_word(const void* address) { return reinterpret_cast<uintptr_t>(address); }

template <class C>
LaunchKey<C> launch_key(const SourceText& source, std::string_view kernel, const C& config) {
  LaunchKey<C> key{0, address_word(kernel.data()), address_word(&config_type<C>)};  // 0: device
  for (size_t i = 0; i < max_texts; ++i) key[3 + i] = address_word(source.texts[i].data());
  config_words(config, key.data() + launch_words);
  return key;
}

struct LaunchText {
  const SourceText& source;
  std::string_view kernel;
  const void* config;
  std::string (*macros)(const void* config);
};

void launch(const LaunchText& text, std::span<uint64_t> key, const Grid& grid,
            std::span<const LaunchArgument> arguments);

}  // namespace detail
}  // namespace ejk
