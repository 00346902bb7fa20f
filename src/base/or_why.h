// SPDX-License-Identifier: Apache-2.0
// A value, or for people why there is none.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace ejk::base {

struct Why {
  std::string text;
};

template <class T>
class OrWhy {
 public:
  OrWhy(T value) : value_(std::move(value)) {}
  OrWhy(Why why) : why_(std::move(why.text)) {}

  explicit operator bool() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  const T* operator->() const { return &*value_; }
  const std::optional<T>& value() const { return value_; }
  const std::string& why() const { return why_; }  // "" if there is a value

 private:
  std::optional<T> value_;
  std::string why_;
};

}  // namespace ejk::base
