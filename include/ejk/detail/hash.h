// SPDX-License-Identifier: Apache-2.0
// The hash of key words.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

__extension__ using uint128 = unsigned __int128;

inline uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<uint128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Words are taken in pairs whose products do not wait for each other. Any odd random-looking
// constants do: a table probe compares the words themselves.
inline uint64_t hash_words(const uint64_t* words, size_t count) {
  constexpr uint64_t a = 0x9E3779B97F4A7C15, b = 0xD6E8FEB86659FD93;
  uint64_t h = count * b;
  uint64_t salt = a;
  size_t i = 0;
  for (; i + 1 < count; i += 2, salt += 0xA0761D6478BD642F)
    h ^= multiply_fold(words[i] ^ salt, words[i + 1] ^ (salt * 5));
  if (i < count) h ^= multiply_fold(words[i] ^ salt, b);
  return h ^ (h >> 32);
}

}  // namespace detail
}  // namespace ejk
