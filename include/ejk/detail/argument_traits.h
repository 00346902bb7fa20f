// SPDX-License-Identifier: Apache-2.0
// Key words: what a parameter adds to the warm key. Declarations; see argument_containers.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// A string literal as template argument.
template <size_t N>
struct FixedString {
  char text[N]{};
  consteval FixedString(const char (&literal)[N]) { std::copy_n(literal, N, text); }
  constexpr operator std::string_view() const { return {text, N - 1}; }
};

// Key words whose number is known at compile time: they stay in registers.
template <size_t N>
struct FixedWords {
  uint64_t words[N == 0 ? 1 : N];
  size_t count = 0;
  void push(uint64_t word) { words[count++] = word; }
};

// Key words of any number: on the stack, spilling to a buffer that the thread keeps. At most one
// sink is alive per thread: the words are copied before any user code runs.
class WordSink {
 public:
  void push(uint64_t word) {
    if (count_ < inline_words) inline_[count_] = word;
    else spill(word);
    ++count_;
  }
  void push_bytes(std::string_view bytes) {
    push(bytes.size());
    while (!bytes.empty()) {
      uint64_t word = 0;
      const size_t n = std::min<size_t>(bytes.size(), 8);
      std::memcpy(&word, bytes.data(), n);
      push(word);
      bytes.remove_prefix(n);
    }
  }
  const uint64_t* data() const { return count_ <= inline_words ? inline_ : spilled_->data(); }
  size_t size() const { return count_; }

 private:
  static constexpr size_t inline_words = 40;  // 8 tensors of rank 4: beyond that is rare
  void spill(uint64_t word);

  uint64_t inline_[inline_words];
  size_t count_ = 0;
  std::vector<uint64_t>* spilled_ = nullptr;
};

inline constexpr int any_number_of_words = -1;

// For each parameter type P (without const and reference):
//   words           how many key words it gives, any_number_of_words if that depends on the value
//   emit(p, sink)   pushes them
//   describe(p)     the same as an Arg
//   Copy            a private copy for tuning
template <class P>
struct ArgTraits;

template <class P>
concept Argument = requires {
  ArgTraits<P>::words;
};

}  // namespace detail
}  // namespace ejk
